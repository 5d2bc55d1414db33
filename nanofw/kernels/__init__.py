"""Kernels, one operation a module, each with a torch function that runs anywhere."""
