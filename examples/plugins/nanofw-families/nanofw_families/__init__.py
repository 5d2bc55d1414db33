"""Families of decoders for nanofw."""
