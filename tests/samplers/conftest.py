"""Tests of Triton kernels run on a GPU, or in Triton's interpreter, which must be chosen before
Triton is imported: `test_in_interpreter.py` runs them there in a process of their own."""

from __future__ import annotations

import os

import torch

if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    collect_ignore_glob = ["test_triton_*.py"]
