"""SiLU or GELU of one half times the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    cdiv,
    launch_dependents,
    next_power_of_2,
    pdl_options,
    wait_for_previous,
)

BLOCK = 1024


SILU = tl.constexpr("silu")
GELU_TANH = tl.constexpr("gelu_tanh")


@triton.jit
def _gated_kernel(
    x_ptr,
    out_ptr,
    stride_x,
    stride_out,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < SIZE
    launch_dependents(PDL)
    wait_for_previous(PDL)
    gate = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + SIZE + offs, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == SILU:
        out = gate / (1.0 + tl.exp(-gate)) * up
    elif ACTIVATION == GELU_TANH:
        # (1 + tanh(y)) / 2 is the logistic function of 2y.
        twice = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
        out = gate * tl.sigmoid(twice) * up
    else:
        out = gate * (0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))) * up
    tl.store(out_ptr + row * stride_out + offs, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """[..., 2 * size] of gate and up to [..., size]: silu(gate) * up."""
    return _gated(x, SILU.value)


def gelu_and_mul(x: torch.Tensor, *, is_tanh: bool) -> torch.Tensor:
    """[..., 2 * size] of gate and up to [..., size]: gelu(gate) * up."""
    return _gated(x, GELU_TANH.value if is_tanh else "gelu")


def _gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    size = x.shape[-1] // 2
    lines = x.reshape(-1, 2 * size)
    out = torch.empty(lines.shape[0], size, dtype=x.dtype, device=x.device)
    if lines.shape[0]:
        block = min(BLOCK, next_power_of_2(size))
        launch(
            _gated_kernel, (lines.shape[0], cdiv(size, block)),
            lines, out, lines.stride(0), out.stride(0),
            SIZE=size, BLOCK=block, ACTIVATION=activation, num_warps=max(1, block // 256),
            **pdl_options(lines),
        )  # fmt: skip
    return out.view(*x.shape[:-1], size)
