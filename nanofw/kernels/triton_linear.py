"""Products of one row, or a few, with a weight: what decoding of few requests spends its time on.

They read each weight once and must reach the memory's bandwidth. A library's product works on
tiles of rows, of which most would be empty here.

- One row: a program keeps a few outputs, multiplies element by element in float32, and has the
  next tile of the weight on its way while it works on one.
- A few rows: a program multiplies all rows with its outputs' weights on the tensor cores, several
  tiles ahead. Wide tiles have the weight as the left operand, whose side of 64 the rows would not
  fill.

Both chain onto the kernel before (`chained`), which a library's kernels would interrupt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from nanofw.kernels.linear import MOST_ROWS
from nanofw.kernels.triton_common import cdiv, chained, dot, next_power_of_2, wait_for_previous

ALIGNMENT = 16  # bytes: of a wide load
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


# For weights of 16-bit elements, from the sweep in `benchmarks/gpu/kernels.py` on an H200: each
# thread has four loads of 16 bytes on their way.
CONFIGS = (
    OneRowConfig(1, 4096, 4),
    OneRowConfig(2, 2048, 4),
    OneRowConfig(2, 1024, 2),
    OneRowConfig(4, 512, 2),
)


@dataclass(frozen=True, slots=True)
class FewRowsConfig:
    """How the kernel is built.

    Attributes:
        outputs: of a program.
        inputs: in a tile of the weight.
        weight_first: the weight is the left operand.
    """

    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    weight_first: bool


FEWEST_DOT_ROWS = 16
WIDE = FewRowsConfig(64, 128, 4, 6, weight_first=True)
NARROW = FewRowsConfig(16, 256, 2, 4, weight_first=False)
FEWEST_WIDE_PROGRAMS = 32  # with fewer, too little of the device would load


@cache
def config_for(num_inputs: int) -> OneRowConfig:
    """The widest tiles that divide the inputs; where none does, the widest of no more."""
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
    CHAINED: tl.constexpr,
):
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    exists = outputs < num_outputs
    # Lines past the end, if any, repeat the last one, and nobody reads a weight again in this step.
    lines = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    places = weight_ptr + lines[:, None] * stride_weight + inputs[None, :]
    weight = _part(places, (inputs < num_inputs)[None, :], EVEN, "evict_first")
    wait_for_previous(CHAINED)
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


@triton.jit(do_not_specialize=["num_rows", "num_outputs"])
def _few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    stride_x,
    stride_weight,
    stride_out,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """All inputs must be full tiles."""
    wait_for_previous(CHAINED)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    inputs = tl.arange(0, INPUTS)
    lines = tl.minimum(outputs, num_outputs - 1).to(tl.int64)  # past the end: the last again
    of_weight = weight_ptr + lines[:, None] * stride_weight + inputs[None, :]
    of_x = x_ptr + rows[:, None] * stride_x + inputs[None, :]
    exists = (rows < num_rows)[:, None]
    if WEIGHT_FIRST:
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    else:
        sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in tl.range(0, num_inputs, INPUTS, num_stages=STAGES):
        weight = tl.load(of_weight + start)
        x = tl.load(of_x + start, mask=exists, other=0.0)
        sums += dot(weight, tl.trans(x)) if WEIGHT_FIRST else dot(x, tl.trans(weight))
    if WEIGHT_FIRST:
        sums = tl.trans(sums)
    if BIAS:
        bias = tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0)
        sums += bias.to(tl.float32)[None, :]
    tl.store(
        out_ptr + rows[:, None] * stride_out + outputs[None, :],
        sums.to(out_ptr.dtype.element_ty),
        mask=exists & (outputs < num_outputs)[None, :],
    )


def few_rows_config(num_outputs: int, num_inputs: int) -> FewRowsConfig | None:
    """The configuration for a weight; None: its inputs are no full tiles."""
    is_wide = num_outputs >= FEWEST_WIDE_PROGRAMS * WIDE.outputs
    config = WIDE if is_wide or num_inputs % NARROW.inputs else NARROW
    return config if num_inputs % config.inputs == 0 else None


def _is_plain(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        x.dtype == weight.dtype
        and x.dtype in DTYPES
        and x.shape[-1] == weight.shape[1]
        and x.stride(-1) == weight.stride(-1) == 1
        and x.data_ptr() % ALIGNMENT == 0
        and weight.shape[0] > 0
    )


def has_one_row(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel for one row takes this product."""
    return x.numel() == x.shape[-1] and _is_plain(x, weight)


def has_few_rows(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel for a few rows takes this product of a [rows, in] `x`."""
    return (
        x.dim() == 2
        and 0 < x.shape[0] <= MOST_ROWS
        and x.element_size() == 2
        and _is_plain(x, weight)
        and few_rows_config(*weight.shape) is not None
    )


def one_row_linear_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: OneRowConfig | None = None,
) -> torch.Tensor:
    """The product of [..., in] with one row and the weight [out, in], plus the bias: [..., out].

    Args:
        config: None: the one for so many inputs.
    """
    num_outputs, num_inputs = weight.shape
    out = torch.empty((*x.shape[:-1], num_outputs), dtype=x.dtype, device=x.device)
    config = config or config_for(num_inputs)
    _one_row_kernel[(cdiv(num_outputs, config.outputs),)](
        x, weight, bias, out, num_outputs, num_inputs, weight.stride(0),
        BIAS=bias is not None, EVEN=num_inputs % config.inputs == 0,
        OUTPUTS=config.outputs, INPUTS=config.inputs, num_warps=config.num_warps,
        **chained(x),
    )  # fmt: skip
    return out


def few_rows_linear_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: FewRowsConfig | None = None,
) -> torch.Tensor:
    """The product of [rows, in] and the weight [out, in], plus the bias: [rows, out].

    Args:
        x: of a 16-bit type; `in` is a multiple of the tile's inputs.
        config: None: the one for such a weight.
    """
    num_rows, (num_outputs, num_inputs) = x.shape[0], weight.shape
    config = config or few_rows_config(num_outputs, num_inputs)
    assert config is not None
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    _few_rows_kernel[(cdiv(num_outputs, config.outputs),)](
        x, weight, bias, out, num_rows, num_outputs, num_inputs,
        x.stride(0), weight.stride(0), out.stride(0),
        BIAS=bias is not None, ROWS=max(FEWEST_DOT_ROWS, next_power_of_2(num_rows)),
        OUTPUTS=config.outputs, INPUTS=config.inputs, STAGES=config.num_stages,
        WEIGHT_FIRST=config.weight_first, num_warps=config.num_warps, **chained(x),
    )  # fmt: skip
    return out
