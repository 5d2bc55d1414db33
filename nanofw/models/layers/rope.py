"""The angles of rotary position embedding, from a model's description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nanofw.contracts.model_spec import ModelSpec, rotated_size
from nanofw.errors import ModelError
from nanofw.kernels.rope import Rotation, rotation
from nanofw.models.layers.rope_types import ROPE_TYPES, RopeSettings


class RotaryEmbedding:
    """Cosines and sines of every position, computed once in float32.

    Args:
        parameters: of the rope; None: those of the whole model, `spec.rope`.
        is_partial: whether the caller brings its heads into `head_order`, which a rope that turns
            only a part of each head needs.
        index: which of the model's ropes it is.

    Attributes:
        cos_sin: float32[max_positions, head_dim], cosines then sines, scaled where the rope
            type scales them. Elements that are not rotated have the angle zero.
    """

    def __init__(
        self,
        spec: ModelSpec,
        max_positions: int,
        device: torch.device,
        parameters: Mapping[str, Any] | None = None,
        *,
        is_partial: bool = False,
        index: int = 0,
    ) -> None:
        rope = spec.rope if parameters is None else parameters
        rope_type = rope.get("rope_type", "default")
        function = ROPE_TYPES.get(rope_type)
        if function is None:
            raise ModelError(
                f"{spec.path}: rope_type {rope_type!r} is not supported; supported are "
                f"{', '.join(ROPE_TYPES)}"
            )
        if spec.rotates_partly and not is_partial:
            raise ModelError(
                f"{spec.path}: partial_rotary_factor {spec.rope['partial_rotary_factor']} is not "
                "supported: heads are rotated as a whole"
            )
        rotated = rotated_size(rope, spec.head_dim)
        settings = RopeSettings(
            parameters=rope,
            head_dim=rotated,
            theta=float(rope.get("rope_theta", 10000.0)),
            trained_len=int(rope.get("original_max_position_embeddings") or spec.max_model_len),
            run_len=max_positions,
        )
        inverse, scale = function(settings)
        self.index = index
        try:
            positions = torch.arange(max_positions, dtype=torch.float32, device=device)
            angles = positions[:, None] * inverse.to(device)
            self.cos_sin: torch.Tensor = _joined(angles, scale, (spec.head_dim - rotated) // 2)
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"{spec.path}: the angles of {max_positions:,} positions do not fit in memory "
                f"({str(error).splitlines()[0]}); set a lower engine.max_model_len"
            ) from error

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation | None:
        """The angles of int64[t] positions, for all layers of a pass; None: nothing is turned."""
        return rotation(self.cos_sin, positions, dtype)


class NoRotation(RotaryEmbedding):
    """Of layers that know no positions. The table is one line, whatever the position."""

    def __init__(
        self, head_dim: int, max_positions: int, device: torch.device, index: int = 0
    ) -> None:
        self.index = index
        line = torch.cat((torch.ones(head_dim // 2), torch.zeros(head_dim // 2)))
        self.cos_sin: torch.Tensor = line.to(device).expand(max_positions, head_dim)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation | None:
        """Nothing."""
        return None


def layer_ropes(
    spec: ModelSpec, max_positions: int, device: torch.device, *, is_partial: bool = False
) -> list[RotaryEmbedding]:
    """The rope of each layer; layers whose parameters are equal share one."""
    wanted = spec.layer_ropes or (spec.rope,) * spec.num_layers
    made: list[tuple[Mapping[str, object] | None, RotaryEmbedding]] = []
    result: list[RotaryEmbedding] = []
    for parameters in wanted:
        rope = next((rope for known, rope in made if known == parameters), None)
        if rope is None:
            index = len(made)
            if parameters is None:
                rope = NoRotation(spec.head_dim, max_positions, device, index)
            else:
                rope = RotaryEmbedding(
                    spec, max_positions, device, parameters, is_partial=is_partial, index=index
                )
            made.append((parameters, rope))
        result.append(rope)
    return result


def distinct(ropes: Sequence[RotaryEmbedding]) -> list[RotaryEmbedding]:
    """Each rope once, by its index."""
    return list({rope.index: rope for rope in sorted(ropes, key=lambda rope: rope.index)}.values())


def head_order(spec: ModelSpec, *, interleaved: bool) -> tuple[int, ...]:
    """Where each element of a head lies in the checkpoint, for kernels that turn i with i + d/2.

    Scores do not depend on the order, as long as queries and keys have the same.

    Args:
        interleaved: the checkpoint turns element 2i with 2i + 1, not i with i + r/2 of the r
            elements that are rotated.

    Returns:
        Nothing where the order is the same.
    """
    rotated, size = rotated_size(spec.rope, spec.head_dim), spec.head_dim
    half, rest = rotated // 2, list(range(rotated, size))
    first = list(range(0, rotated, 2)) if interleaved else list(range(half))
    second = list(range(1, rotated, 2)) if interleaved else list(range(half, rotated))
    middle = len(rest) // 2
    order = (*first, *rest[:middle], *second, *rest[middle:])
    return () if order == tuple(range(size)) else order


def _joined(angles: torch.Tensor, scale: float, num_still: int) -> torch.Tensor:
    """Cosines, then sines, each followed by those of the elements that are not rotated."""
    cos, sin = angles.cos() * scale, angles.sin() * scale
    if not num_still:
        return torch.cat((cos, sin), dim=-1)
    ones = cos.new_ones(len(cos), num_still)
    return torch.cat((cos, ones, sin, torch.zeros_like(ones)), dim=-1)
