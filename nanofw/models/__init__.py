"""Decoders, one file a family."""
