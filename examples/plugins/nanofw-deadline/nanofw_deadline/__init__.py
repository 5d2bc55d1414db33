"""A scheduling policy for nanofw, as an ordinary package."""
