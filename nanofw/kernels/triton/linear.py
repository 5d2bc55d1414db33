"""The product of one row with a weight: decoding a single request reads each weight once.

A library's product works on tiles of rows; all rows but one would be empty here. This one
keeps an output or a few in a program, multiplies element by element in float32, and has the next
tile of the weight on its way while it works on one. What it must reach is the memory's bandwidth.

The first tile is asked for before the kernel that makes the row is through (`pdl_options`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    NO_PDL,
    cdiv,
    launch_dependents,
    next_power_of_2,
    pdl_options,
    wait_for_previous,
)

ALIGNMENT = 16  # bytes: of a wide load
MOST_PDL_PROGRAMS = 8192
"""Programs of a dependent launch: each waits for the kernel before, at some cost. On an H200 twelve
thousand of two microseconds lost more by it than an earlier start won."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class OneRowConfig:
    """How the kernel is built.

    Attributes:
        outputs: of a program.
        inputs: in a tile of the weight.
    """

    outputs: int
    inputs: int
    num_warps: int


# From the sweeps of `benchmarks/gpu/kernels.py` on an H200, for weights of 16-bit elements. Whole
# lines of 4096 inputs in a program, and a program for each output, read 20% less a second.
WIDE_OUTPUTS = 16384
WIDE = OneRowConfig(4, 1024, 4)
CONFIGS = (
    OneRowConfig(2, 2048, 4),
    OneRowConfig(2, 1024, 2),
    OneRowConfig(4, 512, 2),
)


@cache
def config_for(num_outputs: int, num_inputs: int) -> OneRowConfig:
    """The widest tiles that divide the inputs; where none does, the widest of no more."""
    if num_outputs >= WIDE_OUTPUTS:
        wide = WIDE if num_inputs > WIDE.inputs else CONFIGS[-1]  # several tiles of each line
        if num_inputs % wide.inputs == 0:
            return wide
    for config in CONFIGS:
        if num_inputs % config.inputs == 0:
            return config
    width = next_power_of_2(num_inputs)
    return next((config for config in CONFIGS[1:] if config.inputs <= width), CONFIGS[-1])


@triton.jit
def _part(places, inside, EVEN: tl.constexpr, POLICY: tl.constexpr):
    """What lies at `places`; without the mask, where none is needed, loads are wide."""
    if EVEN:
        return tl.load(places, eviction_policy=POLICY)
    return tl.load(places, mask=inside, other=0.0, eviction_policy=POLICY)


@triton.jit(do_not_specialize=["num_outputs"])
def _one_row_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_outputs,
    num_inputs,
    stride_weight,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    exists = outputs < num_outputs
    # Lines past the end, if any, repeat the last one; no weight is read again in this step.
    lines = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    places = weight_ptr + lines[:, None] * stride_weight + inputs[None, :]
    weight = _part(places, (inputs < num_inputs)[None, :], EVEN, "evict_first")
    wait_for_previous(PDL)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(0, num_inputs, INPUTS):
        rest = num_inputs - start
        x = _part(x_ptr + start + inputs, inputs < rest, EVEN, "").to(tl.float32)
        sums += weight.to(tl.float32) * x[None, :]
        if rest > INPUTS:
            next_inside = (inputs < rest - INPUTS)[None, :]
            weight = _part(places + (start + INPUTS), next_inside, EVEN, "evict_first")
    out = tl.sum(sums, axis=1)
    if BIAS:
        out += tl.load(bias_ptr + outputs, mask=exists, other=0.0).to(tl.float32)
    tl.store(out_ptr + outputs, out.to(out_ptr.dtype.element_ty), mask=exists)


def has_one_row(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel takes this product."""
    return (
        x.numel() == x.shape[-1] == weight.shape[1]
        and x.dtype == weight.dtype
        and x.dtype in DTYPES
        and x.stride(-1) == weight.stride(-1) == 1
        and x.data_ptr() % ALIGNMENT == 0
        and weight.shape[0] > 0
    )


def one_row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: OneRowConfig | None = None,
) -> torch.Tensor:
    """The product of [..., in] with one row and the weight [out, in], plus the bias: [..., out].

    Args:
        config: None: the one for such a weight.
    """
    num_outputs, num_inputs = weight.shape
    out = torch.empty((*x.shape[:-1], num_outputs), dtype=x.dtype, device=x.device)
    config = config or config_for(num_outputs, num_inputs)
    num_programs = cdiv(num_outputs, config.outputs)
    launch(
        _one_row_kernel, (num_programs,),
        x, weight, bias, out, num_outputs, num_inputs, weight.stride(0),
        BIAS=bias is not None, EVEN=num_inputs % config.inputs == 0,
        OUTPUTS=config.outputs, INPUTS=config.inputs, num_warps=config.num_warps,
        **(pdl_options(x) if num_programs <= MOST_PDL_PROGRAMS else NO_PDL),
    )  # fmt: skip
    return out
