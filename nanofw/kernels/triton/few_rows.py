"""The product of a few rows with a weight: decoding a few requests reads each weight once.

The rows fill one tile of the tensor cores, so what counts is how much of the weight is on its way.
A program keeps a few outputs and has the next tiles of the weight under way while it multiplies
one. Each of its warps multiplies its own part of a tile, so that no warp waits for the sum of
another; the parts are added at the end:

    inputs    |--warp 0--|--warp 1--|--warp 2--|--warp 3--|--warp 0--| ...

The first of the weight is asked for before the kernel that makes the rows is through
(`pdl_options`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.linear import MOST_ROWS
from nanofw.kernels.triton.common import (
    NO_PDL,
    ask_for,
    cdiv,
    dot,
    launch_dependents,
    pdl_options,
    wait_for_previous,
)
from nanofw.kernels.triton.linear import ALIGNMENT, MOST_PDL_PROGRAMS

LINE = 64
"""Elements of a line of the cache."""
LINES_AHEAD = 16
"""Lines of each output's inputs that are asked for first."""
WIDE_OUTPUTS = 16384
"""Weights of this many outputs are left to the library too, which reads them as fast, except with
five to eight rows: there it took 12% longer on an H200."""
MOST_OUTPUTS = 65536
"""Weights of more outputs, which only heads have, are always left to the library."""


@dataclass(frozen=True, slots=True)
class FewRowsConfig:
    """How the kernel is built.

    Attributes:
        outputs: of a program.
        num_stages: tiles under way at once, the one that is multiplied among them.
        parts: into which a tile of the inputs is cut, one for each warp.
        inputs: in a part.
    """

    outputs: int
    num_stages: int
    parts: int = 4
    inputs: int = 128

    @property
    def tile(self) -> int:
        """Inputs of a tile."""
        return self.parts * self.inputs


# From the sweeps of `benchmarks/gpu/kernels.py` on an H200, each product behind a norm: outputs of
# the weight up to, configuration.
CONFIGS: tuple[tuple[int, FewRowsConfig], ...] = (
    (2048, FewRowsConfig(8, 4)),
    (4096, FewRowsConfig(16, 4)),
    (MOST_OUTPUTS, FewRowsConfig(16, 3)),
)


def few_rows_config(num_outputs: int, num_inputs: int, num_rows: int) -> FewRowsConfig | None:
    """The configuration for a product; None: the library is as fast, or no full tiles."""
    if not 0 < num_rows <= MOST_ROWS:
        return None
    if num_outputs >= WIDE_OUTPUTS and not 4 < num_rows <= 8:
        return None
    config = next((config for most, config in CONFIGS if num_outputs <= most), None)
    return config if config is not None and num_inputs % config.tile == 0 else None


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
    PARTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.arange(0, ROWS)
    # [parts, rows or outputs, inputs]: the product of each part is a product of its own.
    places = tl.arange(0, PARTS)[:, None, None] * INPUTS + tl.arange(0, INPUTS)[None, None, :]
    # Lines past the end repeat the last one. Rows of x past the end are not loaded: all programs
    # would load the same one at once.
    lines = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    of_weight = weight_ptr + lines[None, :, None] * stride_weight + places
    of_x = x_ptr + rows[None, :, None] * stride_x + places
    exists = (rows < num_rows)[None, :, None]
    if PDL:
        ahead = tl.minimum(tl.arange(0, AHEAD) * LINE, num_inputs - LINE)
        ask_for(weight_ptr + lines[:, None] * stride_weight + ahead[None, :])
    wait_for_previous(PDL)
    sums = tl.zeros([PARTS, ROWS, OUTPUTS], tl.float32)
    for start in tl.range(0, num_inputs, PARTS * INPUTS, num_stages=STAGES):
        x = tl.load(of_x + start, mask=exists, other=0.0)
        weight = tl.load(of_weight + start, eviction_policy="evict_first")
        sums += dot(x, tl.permute(weight, (0, 2, 1)))
    out = tl.sum(sums, axis=0)
    if BIAS:
        bias = tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0)
        out += bias.to(tl.float32)[None, :]
    tl.store(
        out_ptr + rows[:, None] * stride_out + outputs[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=(rows < num_rows)[:, None] & (outputs < num_outputs)[None, :],
    )


def has_few_rows(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel takes this product of a [rows, in] `x`."""
    return (
        x.dim() == 2
        and x.shape[1] == weight.shape[1]
        and few_rows_config(*weight.shape, x.shape[0]) is not None
        and x.dtype == weight.dtype
        and x.dtype in (torch.float16, torch.bfloat16)
        and x.stride(1) == weight.stride(1) == 1
        and x.data_ptr() % ALIGNMENT == 0
        and x.stride(0) * x.element_size() % ALIGNMENT == 0
    )


def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: FewRowsConfig | None = None,
) -> torch.Tensor:
    """The product of [rows, in] and the weight [out, in], plus the bias: [rows, out].

    Args:
        x: of at most `MOST_ROWS` rows; `in` is a multiple of the configuration's tile.
        config: None: the one for such a product.
    """
    num_rows, (num_outputs, num_inputs) = x.shape[0], weight.shape
    config = config or few_rows_config(num_outputs, num_inputs, num_rows)
    assert config is not None
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    num_programs = cdiv(num_outputs, config.outputs)
    launch(
        _few_rows_kernel, (num_programs,),
        x, weight, bias, out, num_rows, num_outputs, num_inputs,
        x.stride(0), weight.stride(0), out.stride(0),
        BIAS=bias is not None, ROWS=MOST_ROWS, OUTPUTS=config.outputs, PARTS=config.parts,
        INPUTS=config.inputs, STAGES=config.num_stages, AHEAD=LINES_AHEAD, LINE=LINE,
        num_warps=config.parts,
        **(pdl_options(x) if num_programs <= MOST_PDL_PROGRAMS else NO_PDL),
    )  # fmt: skip
    return out
