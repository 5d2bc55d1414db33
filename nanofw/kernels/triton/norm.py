"""RMSNorm, and residual add + RMSNorm, one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    launch_dependents,
    next_power_of_2,
    pdl_options,
    wait_for_previous,
)


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    stride_x,
    stride_residual,
    stride_out,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, SIZE_PAD)
    mask = offs < SIZE
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        line = residual_ptr + row * stride_residual + offs
        x += tl.load(line, mask=mask, other=0.0).to(tl.float32)
        # The stream keeps the model's precision, and the norm is of what is kept.
        kept = x.to(residual_ptr.dtype.element_ty)
        tl.store(line, kept, mask=mask)
        x = kept.to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps) * weight
    tl.store(out_ptr + row * stride_out + offs, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    size = x.shape[-1]
    lines = x.reshape(-1, size)
    kept = None if residual is None else residual.view(-1, size)
    out = torch.empty(lines.shape, dtype=x.dtype, device=x.device)
    if lines.shape[0]:
        pad = next_power_of_2(size)
        launch(
            _rms_norm_kernel, (lines.shape[0],),
            lines, kept, weight, out, eps,
            lines.stride(0), 0 if kept is None else kept.stride(0), out.stride(0),
            SIZE=size, SIZE_PAD=pad, ADD=kept is not None,
            num_warps=min(16, max(1, pad // 512)), **pdl_options(lines),
        )  # fmt: skip
    return out.view(x.shape)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension of [..., size], in float32 inside."""
    return _launch(x, None, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual += x` in place, and the RMSNorm of the sum. Returns both: norm, residual."""
    return _launch(x, residual, weight, eps), residual
