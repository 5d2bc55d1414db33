"""Rotary position embedding in the layout of two halves: element i turns with i + d/2.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rotation(NamedTuple):
    """The angles of one pass, in the form that `rotate` multiplies with.

    Attributes:
        cos: [t, 1, d], the cosines twice.
        sin: [t, 1, d], the negated sines, then the sines.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def rotation(cos_sin: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Pick the angles of int64[t] positions from float32[max_positions, d], cosines then sines."""
    cos, sin = cos_sin[positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def rotate(x: torch.Tensor, angles: Rotation) -> torch.Tensor:
    """Turn each head of x [t, heads, d] by the angles of its token."""
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    return torch.addcmul(x * angles.cos, swapped, angles.sin)
