"""Rotary positions as a `config.json` describes them: type, theta and parameters.

The precedence is that of transformers. `rope_scaling`, where it says anything, takes the place of
`rope_parameters` as a whole. Theta is found in the one that counts, else at the top of the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from nanofw.checkpoints.files import shown
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.contracts.model_spec import rotated_size
from nanofw.errors import ModelError
from nanofw.narrowing import is_number

NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "longrope": ("short_factor", "long_factor"),
    }
)
"""Rope types that are read, and the parameters that each cannot do without."""
USUAL_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
"""Those of a family that does not name its own."""
_OLD_NAMES = {"su": "longrope"}
_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_COMMON = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
TRAINED_POSITIONS = "original_max_position_embeddings"
"""The key of the positions before a rope was scaled."""
_LONGROPE = ("attention_factor", "factor")
_NUMBERS = (
    "rope_theta",
    "low_freq_factor",
    "high_freq_factor",
    "factor",
    TRAINED_POSITIONS,
    *_YARN[:-1],
)
_MOST_POSITIONS = (1 << 31) - 1  # they are counted in 32 bits


def read_rope(
    keys: ConfigKeys, positions: int, head_dim: int, types: Sequence[str] = USUAL_TYPES
) -> dict[str, object]:
    """Type, theta and parameters, from wherever this version of the file keeps them.

    Args:
        positions: `max_position_embeddings`.
        head_dim: elements of a head.
        types: those that the family has.
    """
    rope = _stated(keys)
    theta = keys.value("rope_theta")
    return complete_rope(
        rope, keys, positions, head_dim, 10000.0 if theta is None else theta, types
    )


def complete_rope(
    rope: dict[str, object],
    keys: ConfigKeys,
    positions: int,
    head_dim: int,
    theta: object,
    types: Sequence[str] = USUAL_TYPES,
) -> dict[str, object]:
    """Parameters as the file states them, with what it left out, checked. Changes `rope`.

    Args:
        theta: where the parameters state none.
    """
    kind = _kind(rope, keys.place, types)
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = theta
    partly = "partial_rotary_factor"
    if partly in keys.config or partly in keys.defaults:
        stated = keys.config.get(partly, keys.defaults.get(partly))
        rope.setdefault(partly, stated)
    if partly in keys.defaults:
        _check_share(rope.get(partly), keys.place, head_dim)
    _set_trained_length(rope, keys, positions)
    _check_numbers(rope, keys.place)
    if kind == "longrope":
        _check_factors(rope, keys.place, head_dim)
        if rope.get("factor") is None:
            rope["factor"] = positions / _number(rope, TRAINED_POSITIONS)
    if kind == "yarn" and "factor" in rope and rope["factor"] is None:
        rope["factor"] = positions / _number(rope, TRAINED_POSITIONS)
    missing = [key for key in NEEDED[kind] if rope.get(key) is None]
    if missing:
        raise ModelError(f"{keys.place}: rope type {kind} lacks {', '.join(missing)}")
    _check_relations(rope, keys.place, head_dim)
    rope["rope_theta"] = float(_number(rope, "rope_theta"))
    return rope


def unused_parameters(rope: Mapping[str, object]) -> list[str]:
    """Parameters that the type does not know."""
    kind = str(rope["rope_type"])
    more = {"yarn": _YARN, "longrope": _LONGROPE}.get(kind, ())
    known = {*_COMMON, *NEEDED[kind], TRAINED_POSITIONS, *more}
    return sorted(set(rope) - known)


def reach(rope: Mapping[str, object], positions: int, place: str) -> int:
    """Positions of the model; scaled ropes reach further than the positions trained on."""
    scaled, why = 0.0, "max_position_embeddings"
    if rope["rope_type"] in ("yarn", "linear", "dynamic"):
        trained = _number(rope, TRAINED_POSITIONS) if rope["rope_type"] == "yarn" else positions
        scaled = trained * float(_number(rope, "factor"))
    if scaled > positions:
        why = f"rope parameter factor {rope['factor']!r}"
    if max(positions, scaled) > _MOST_POSITIONS:
        raise ModelError(
            f"{place}: {why} makes {max(positions, scaled):.3g} positions; "
            f"{_MOST_POSITIONS:,} at most are supported"
        )
    return max(positions, int(scaled))


def _stated(keys: ConfigKeys) -> dict[str, object]:
    key = "rope_scaling" if keys.config.get("rope_scaling") else "rope_parameters"
    found: object = keys.config.get(key) or {}
    if not isinstance(found, dict):
        raise ModelError(
            f"{keys.place}: {key}: rope parameters should be an object, not {shown(found)}"
        )
    rope = dict(cast("dict[str, object]", found))
    if any(isinstance(value, dict) for name, value in rope.items() if name not in _COMMON):
        raise ModelError(f"{keys.place}: {key}: rope parameters per layer type are not supported")
    return rope


def _kind(rope: dict[str, object], place: str, types: Sequence[str]) -> str:
    """The type, under its one name from here on."""
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    kind = _OLD_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in types:
        raise ModelError(
            f"{place}: rope type {shown(kind)} is not supported; supported: {', '.join(types)}"
        )
    rope["rope_type"] = kind
    return kind


def _set_trained_length(rope: dict[str, object], keys: ConfigKeys, positions: int) -> None:
    """Positions before scaling: beside the parameters, among them, or those of the model."""
    if rope["rope_type"] == "dynamic":
        rope[TRAINED_POSITIONS] = positions
    elif rope["rope_type"] in ("yarn", "llama3", "longrope"):
        given = (keys.value(TRAINED_POSITIONS), rope.get(TRAINED_POSITIONS), positions)
        rope[TRAINED_POSITIONS] = next(value for value in given if value is not None)


def _number(rope: Mapping[str, object], key: str) -> int | float:
    """A parameter that is there and was checked."""
    value = rope[key]
    assert is_number(value)
    return value


def _check_numbers(rope: Mapping[str, object], place: str) -> None:
    for key in _NUMBERS:
        value = rope.get(key)
        if value is not None and not (is_number(value) and 0 < value <= sys.float_info.max):
            raise ModelError(
                f"{place}: rope parameter {key} should be positive, not {shown(value)}"
            )


def _check_share(value: object, place: str, head_dim: int) -> None:
    """The rotated elements are pairs, and those that are not rotated are too."""
    num_rotated = int(head_dim * value) if is_number(value) and 0 < value <= 1 else 0
    if num_rotated < 2 or num_rotated % 2:
        raise ModelError(
            f"{place}: partial_rotary_factor should leave an even number of the {head_dim} "
            f"elements of a head to rotate, not {shown(value)}"
        )


def _check_factors(rope: Mapping[str, object], place: str, head_dim: int) -> None:
    """One factor for each pair of elements that is rotated, in both sets."""
    wanted = rotated_size(rope, head_dim) // 2
    for key in NEEDED["longrope"]:
        found: object = rope.get(key)
        numbers = cast("list[object]", found) if isinstance(found, list) else []
        is_right = len(numbers) == wanted and all(
            is_number(item) and 0 < item <= sys.float_info.max for item in numbers
        )
        if not is_right:
            raise ModelError(
                f"{place}: rope parameter {key} should be {wanted} positive numbers, not "
                f"{shown(cast('object', found))}"
            )


def _check_relations(rope: Mapping[str, object], place: str, head_dim: int) -> None:
    kind = rope["rope_type"]
    if _number(rope, "rope_theta") <= 1:
        raise ModelError(f"{place}: rope_theta should be above 1, not {rope['rope_theta']!r}")
    if is_number(factor := rope.get("factor")) and factor < 1:
        raise ModelError(f"{place}: rope parameter factor should be at least 1, not {factor!r}")
    fast, slow = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1
    assert is_number(fast)
    assert is_number(slow)
    if kind == "yarn" and fast < slow:
        raise ModelError(
            f"{place}: rope type yarn needs beta_slow <= beta_fast, not {slow!r} and {fast!r}"
        )
    if kind == "llama3" and (_number(rope, "low_freq_factor") >= _number(rope, "high_freq_factor")):
        raise ModelError(f"{place}: rope type llama3 needs low_freq_factor < high_freq_factor")
    if kind == "dynamic" and head_dim <= 2:
        raise ModelError(f"{place}: rope type dynamic needs a head_dim above 2, not {head_dim}")
