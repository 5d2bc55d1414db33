"""Published scheduling policies for nanofw, one module each."""
