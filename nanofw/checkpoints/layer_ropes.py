"""Ropes that differ by layer: one for each kind of layer, or none in some layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from nanofw.checkpoints.files import shown
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.rope import TRAINED_POSITIONS, complete_rope, read_rope
from nanofw.errors import ModelError

_KINDS = ("full_attention", "sliding_attention")
_TYPES = ("default", "linear", "yarn", "llama3")  # none that depends on the length of a run


def ropes_by_kind(
    keys: ConfigKeys, kinds: Sequence[str], head_dim: int, *, thetas: Mapping[str, object]
) -> tuple[dict[str, object], tuple[Mapping[str, object] | None, ...]]:
    """A rope for each kind of layer; that of layers with full attention is the model's.

    `rope_scaling` changes the latter alone.

    Args:
        kinds: that of each layer.
        thetas: by kind, where its parameters state none.
    """
    stated = _stated(keys)
    if keys.config.get("rope_scaling") is not None:
        if keys.config.get("rope_parameters") is None:  # as in transformers, `type` is not enough
            stated["full_attention"] = {"rope_type": "default"}
        stated["full_attention"] |= _mapping(keys, "rope_scaling", keys.config["rope_scaling"])
    positions = keys.count("max_position_embeddings", (1 << 40) - 1)
    keys = keys.without(TRAINED_POSITIONS)  # here each rope states its own, or that of the model
    ropes = {
        kind: complete_rope(stated[kind], keys, positions, head_dim, thetas[kind], _TYPES)
        for kind in _KINDS
    }
    return ropes["full_attention"], tuple(ropes[kind] for kind in kinds)


def rope_in_some(
    keys: ConfigKeys, num_layers: int, head_dim: int, *, rotates: Sequence[bool]
) -> tuple[dict[str, object], tuple[Mapping[str, object] | None, ...]]:
    """One rope, in the layers that rotate."""
    positions = keys.count("max_position_embeddings", (1 << 40) - 1)
    rope = read_rope(keys, positions, head_dim)
    return rope, tuple(rope if does else None for does in rotates)


def _stated(keys: ConfigKeys) -> dict[str, dict[str, object]]:
    """Parameters by kind of layer; a file of one rope for all layers does not state them."""
    found = _mapping(keys, "rope_parameters", keys.config.get("rope_parameters"))
    return {kind: _mapping(keys, f"rope_parameters.{kind}", found.get(kind)) for kind in _KINDS}


def _mapping(keys: ConfigKeys, key: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict | None):
        raise ModelError(
            f"{keys.place}: {key}: rope parameters should be an object, not {shown(value)}"
        )
    return dict(cast("dict[str, object]", value or {}))
