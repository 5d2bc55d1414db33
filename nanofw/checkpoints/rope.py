"""Rotary position embedding as `config.json` describes it, and the positions that it reaches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from nanofw.errors import ModelError

ROPE_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
)
"""Rope types that are read, and the parameters that each cannot do without."""
_ROPE_NUMBERS = (
    "rope_theta",
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
_MOST_POSITIONS = (1 << 31) - 1  # they are counted in 32 bits


def rope_of(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Type, theta and parameters, from wherever this version of the file keeps them."""
    found: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelError(f"{place}: rope parameters should be an object, not {found!r}")
    rope = dict(cast("dict[str, Any]", found))
    if rope and all(isinstance(value, dict) for value in rope.values()):
        raise ModelError(f"{place}: rope parameters per layer type are not supported")
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    if not isinstance(kind, str) or kind not in ROPE_PARAMETERS:
        raise ModelError(
            f"{place}: rope type {kind!r} is not supported; supported: {', '.join(ROPE_PARAMETERS)}"
        )
    missing = [key for key in ROPE_PARAMETERS[kind] if rope.get(key) is None]
    if missing:
        raise ModelError(f"{place}: rope type {kind} lacks {', '.join(missing)}")
    rope["rope_type"] = kind
    given = (rope.get("rope_theta"), config.get("rope_theta"), 10000.0)
    rope["rope_theta"] = next(value for value in given if value is not None)
    if "partial_rotary_factor" in config:
        rope.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    _set_trained_length(rope, config)
    _check_numbers(rope, place)
    rope["rope_theta"] = float(rope["rope_theta"])
    return rope


def _set_trained_length(rope: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Positions before scaling: beside the parameters, among them, or those of the model."""
    key, positions = "original_max_position_embeddings", config["max_position_embeddings"]
    if rope["rope_type"] == "dynamic":
        rope[key] = positions
    elif rope["rope_type"] in ("yarn", "llama3"):
        given = (config.get(key), rope.get(key), positions)
        rope[key] = next(value for value in given if value is not None)


def _check_numbers(rope: Mapping[str, Any], place: str) -> None:
    for key in _ROPE_NUMBERS:
        value = rope.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= sys.float_info.max):
            raise ModelError(f"{place}: rope parameter {key} should be positive, not {value!r}")
    if rope["rope_theta"] <= 1:
        raise ModelError(f"{place}: rope_theta should be above 1, not {rope['rope_theta']!r}")
    if (factor := rope.get("factor")) is not None and factor < 1:
        raise ModelError(f"{place}: rope parameter factor should be at least 1, not {factor!r}")
    fast, slow = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1
    if rope["rope_type"] == "yarn" and fast < slow:
        raise ModelError(
            f"{place}: rope type yarn needs beta_slow <= beta_fast, not {slow!r} and {fast!r}"
        )
    if rope["rope_type"] == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise ModelError(f"{place}: rope type llama3 needs low_freq_factor < high_freq_factor")


def max_model_len(config: Mapping[str, Any], rope: Mapping[str, Any], place: str) -> int:
    """Positions of the model; scaled ropes reach further than the positions trained on."""
    positions, reach, why = config["max_position_embeddings"], 0.0, "max_position_embeddings"
    if rope["rope_type"] in ("yarn", "linear", "dynamic"):
        trained = rope.get("original_max_position_embeddings") or positions
        reach = (trained if rope["rope_type"] == "yarn" else positions) * float(rope["factor"])
    if reach > positions:
        why = f"rope parameter factor {rope['factor']!r}"
    if max(positions, reach) > _MOST_POSITIONS:
        raise ModelError(
            f"{place}: {why} makes {max(positions, reach):.3g} positions; "
            f"{_MOST_POSITIONS:,} at most are supported"
        )
    return max(positions, int(reach))
