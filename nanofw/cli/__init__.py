"""The `nanofw` command."""
