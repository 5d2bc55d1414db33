"""Attention backends, one kernel or library each."""
