"""The angles of rotary position embedding, from a model's description."""

from __future__ import annotations

import torch

from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.kernels.rope import Rotation, rotation
from nanofw.models.layers.rope_types import ROPE_TYPES, RopeSettings


class RotaryEmbedding:
    """Cosines and sines of every position, computed once in float32.

    Attributes:
        cos_sin: float32[max_positions, head_dim], cosines then sines, scaled where the rope
            type scales them.
    """

    def __init__(self, spec: ModelSpec, max_positions: int, device: torch.device) -> None:
        rope_type = spec.rope.get("rope_type", "default")
        function = ROPE_TYPES.get(rope_type)
        if function is None:
            raise ModelError(
                f"{spec.path}: rope_type {rope_type!r} is not supported; supported are "
                f"{', '.join(ROPE_TYPES)}"
            )
        if spec.rotates_partly:
            raise ModelError(
                f"{spec.path}: partial_rotary_factor {spec.rope['partial_rotary_factor']} is not "
                "supported: heads are rotated as a whole"
            )
        settings = RopeSettings(
            parameters=spec.rope,
            head_dim=spec.head_dim,
            theta=float(spec.rope.get("rope_theta", 10000.0)),
            trained_len=spec.trained_len,
            run_len=max_positions,
        )
        inverse, scale = function(settings)
        try:
            positions = torch.arange(max_positions, dtype=torch.float32, device=device)
            angles = positions[:, None] * inverse.to(device)
            self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"{spec.path}: the angles of {max_positions:,} positions do not fit in memory "
                f"({str(error).splitlines()[0]}); set a lower engine.max_model_len"
            ) from error

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The angles of int64[t] positions, for all layers of a pass."""
        return rotation(self.cos_sin, positions, dtype)
