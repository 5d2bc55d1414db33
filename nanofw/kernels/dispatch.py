"""Which implementation of a kernel runs: Triton's on NVIDIA GPUs, torch's everywhere else.

Where a GPU has no Triton the torch functions run, and a warning says so once. A Triton kernel
that fails raises: nothing falls back behind the user's back.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch

from nanofw.kernels.aot.meta_device import current_warm_up, stands_for_cuda


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether kernels on this tensor are Triton's."""
    return (tensor.is_cuda and has_triton()) or (tensor.is_meta and stands_for_cuda(tensor.device))


def runs_triton(device: torch.device) -> bool:
    """Whether kernels on this device are Triton's."""
    return (device.type == "cuda" and has_triton()) or stands_for_cuda(device)


@cache
def has_triton() -> bool:
    """Whether Triton's kernels can run on the CUDA devices of this process."""
    if torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"Triton cannot be imported ({error}): slower torch kernels run on the GPU; "
            "pip install 'nanofw[triton]'",
            stacklevel=3,
        )
        return False
    return True


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a Triton kernel; on a dry run (`nanofw.kernels.aot`), only compile what would run."""
    warm_up = current_warm_up()
    if warm_up is None:
        kernel[grid](*args, **options)
    else:
        warm_up(kernel, grid, args, options)
