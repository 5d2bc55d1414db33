"""CUDA graphs: their sizes, their capture, and the steps that are replayed from them."""
