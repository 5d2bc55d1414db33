"""What every Triton kernel here shares. Importing this module imports Triton.

In Triton's interpreter (`TRITON_INTERPRET=1`, set before the first import) the kernels run on
CPU tensors. Its matrix product is wrong for bfloat16 operands, so they are widened there.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from nanofw.kernels.aot.meta_device import cuda_device

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
WIDEN = tl.constexpr(INTERPRETED)
LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)
NO_PDL = {"PDL": False, "launch_pdl": False}


@triton.jit
def dot(a, b):
    """float32 product; float32 operands are never rounded to TF32."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def soft_capped(scores, SOFT_CAP: tl.constexpr):
    """Scores s, in units of log 2, as SOFT_CAP * tanh(s / SOFT_CAP): never more than the cap."""
    decay = tl.exp2(-tl.abs(scores) * (2.0 / SOFT_CAP))
    capped = (1.0 - decay) / (1.0 + decay) * (SOFT_CAP * _LOG2_E)
    return tl.where(scores < 0.0, -capped, capped)


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """The kernel after this one may start when all programs of this one are past this place.

    It comes first: loads before it would be waited for.
    """
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Come before whatever the kernel before this one may have written, or still reads."""
    if PDL:
        gdc_wait()


@triton.jit
def ask_for(places):
    """Have the lines of these addresses brought to the second-level cache, without waiting."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l",
        [places.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def pdl_options(tensor: torch.Tensor) -> dict[str, bool]:
    """Options of a programmatic dependent launch (PDL), where the GPU can: compute capability 9.0.

    A GPU otherwise starts a kernel when all of the one before has ended, which costs about a
    microsecond in each of the hundreds of kernels of a decode step. So launched, its programs are
    in place by then. Such a kernel calls `launch_dependents` and `wait_for_previous`; between the
    two it may touch only what never changes while steps run: weights.
    """
    can = _has_pdl(cuda_device(tensor.device))
    return {"PDL": can, "launch_pdl": can}


@cache
def _has_pdl(device: torch.device | None) -> bool:
    if INTERPRETED or device is None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """A / b, rounded up."""
    return -(-a // b)


def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; 4 in the interpreter."""
    cuda = cuda_device(device)
    return 4 if cuda is None else torch.cuda.get_device_properties(cuda).multi_processor_count
