"""CUDA graphs: their sizes, their capture, and the steps that they replay."""
