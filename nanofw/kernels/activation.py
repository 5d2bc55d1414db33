"""The gated activation of the feed-forward part."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2d], gate first; gives [..., d]."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
