"""What every Triton kernel here shares. Importing this module imports Triton.

In Triton's interpreter (`TRITON_INTERPRET=1`, set before the first import) the kernels run on
CPU tensors. Its matrix product is wrong for bfloat16 operands, so they are widened there.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
WIDEN = tl.constexpr(INTERPRETED)
LOG2_E = 1.4426950408889634


@triton.jit
def dot(a, b):
    """float32 product; float32 operands are never rounded to TF32."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """A / b, rounded up."""
    return -(-a // b)


def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device, of the current one for `meta`; 4 in the interpreter."""
    if device.type == "meta" and torch.cuda.is_available():
        device = torch.device("cuda")
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
