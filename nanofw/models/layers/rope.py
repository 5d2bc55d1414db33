"""The angles of rotary position embedding, from a model's description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from nanofw.core.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.kernels.rope import Rotation, rotation


def _default(inverse: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    return inverse


def _linear(inverse: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Positions are divided by a factor: Chen et al., "Extending Context Window of Large
    Language Models via Positional Interpolation"."""
    return inverse / float(parameters["factor"])


ROPE_TYPES: dict[str, Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]] = {
    "default": _default,
    "linear": _linear,
}
"""What each `rope_type` makes of the inverse frequencies [head_dim / 2]."""


class RotaryEmbedding:
    """Cosines and sines of every position, computed once in float32.

    Attributes:
        cos_sin: float32[max_positions, head_dim], cosines then sines.
    """

    def __init__(self, spec: ModelSpec, max_positions: int, device: torch.device) -> None:
        rope_type = spec.rope.get("rope_type", "default")
        scale = ROPE_TYPES.get(rope_type)
        if scale is None:
            raise ModelError(
                f"{spec.path}: rope_type {rope_type!r} is not supported; supported are "
                f"{', '.join(ROPE_TYPES)}"
            )
        theta = float(spec.rope.get("rope_theta", 10000.0))
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=device)
        inverse = scale(1.0 / theta ** (exponents / spec.head_dim), spec.rope)
        positions = torch.arange(max_positions, dtype=torch.float32, device=device)
        angles = positions[:, None] * inverse
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The angles of int64[t] positions, for all layers of a pass."""
        return rotation(self.cos_sin, positions, dtype)
