"""Decision logs: what a policy saw and chose in each step, why a request waited, another policy."""
