"""Compiling Triton kernels ahead of their first launch, in threads, while weights are loaded.

What to compile is found by a *dry run*: the very code that will launch the kernels runs on tensors
of the device `meta`, which have shapes, strides and alignments and no content. A launch there only
hands the variant of the kernel that it needs to a pool of threads. Everything that knows of this
device or of a dry run is in this folder:

- `start` decides whether kernels are compiled ahead, and starts it;
- `compiler` has the threads, and is the only module that talks to Triton's compiler;
- `meta_device` says whether the calling thread is on a dry run, and which GPU `meta` stands for;
- `meta_shapes` has the results of torch's operations on `meta`;
- `communicator` stands for the other ranks.

Kernels take part by `dispatch.uses_triton` and `dispatch.launch`, and ask nothing else.
"""
