"""RMSNorm, alone or after the addition of the residual stream."""

from __future__ import annotations

import torch
from torch.nn import functional

from nanofw.kernels.dispatch import uses_triton


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Divide each [..., d] vector by its root mean square and scale it by `weight` [d].

    The mean is taken in float32. Zhang and Sennrich, "Root Mean Square Layer Normalization".
    """
    if weight is not None and uses_triton(x):
        from nanofw.kernels.triton import norm as triton_norm

        return triton_norm.rms_norm(x, weight, eps)
    if weight is not None and weight.dtype != x.dtype:  # a weight that was kept in float32
        return functional.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add [t, d] `x` to the residual stream, in place, and normalise the sum.

    Returns:
        The normalised sum, and the sum itself.
    """
    if uses_triton(x):
        from nanofw.kernels.triton import norm as triton_norm

        return triton_norm.add_rms_norm(x, residual, weight, eps)
    residual += x
    return rms_norm(residual, weight, eps), residual
