"""Compiling kernels ahead of their first launch."""
