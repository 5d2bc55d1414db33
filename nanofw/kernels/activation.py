"""The gated activation of the feed-forward part."""

from __future__ import annotations

import torch
from torch.nn import functional

from nanofw.kernels.dispatch import uses_triton


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2d], gate first; gives [..., d]."""
    if uses_triton(x):
        from nanofw.kernels.triton import activation as triton_activation

        return triton_activation.silu_and_mul(x)
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
