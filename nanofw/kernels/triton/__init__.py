"""Kernels in Triton. The modules above this folder choose between them and torch."""
