"""Arms of every combination of some keys' values: `sweep:` of an experiment file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanofw.config.layers import override_layer
from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, dotted, nearest_source
from nanofw.errors import ConfigError
from nanofw.narrowing import is_dict, is_list


@dataclass(frozen=True, slots=True)
class SweptArm:
    """An arm that a sweep makes.

    Attributes:
        arm: the arm of the file that it changes; None: the file names none.
        layer: the change.
    """

    arm: str | None
    layer: ConfigLayer


def swept_arms(
    data: Mapping[str, object], sources: Mapping[KeyPath, ValueSource], most: int
) -> dict[str, SweptArm]:
    """An arm for each combination of values, of each arm that the file names; none: no sweep.

    Raises:
        ConfigError: with the place of what is wrong.
    """
    sweep, arms = data.get("sweep"), data.get("arms")
    if sweep is None:
        return {}
    if not is_dict(sweep) or not sweep:
        raise _error("gives each key its values: {engine.max_num_seqs: [8, 16]}", (), sources)
    names: list[str | None] = [None]
    if is_dict(arms) and arms:
        names = [*arms]
    choices: list[list[tuple[str, object]]] = []
    for key, values in sweep.items():
        if not is_list(values) or not values:
            raise _error(f"is {values!r}; it needs a list of values", (key,), sources)
        choices.append([(str(key), value) for value in values])
    num = math.prod(map(len, choices)) * len(names)
    if num > most:
        raise _error(f"makes {num:,} arms; at most {most:,} are compared", (), sources)
    found: dict[str, SweptArm] = {}
    for name, items in itertools.product(names, itertools.product(*choices)):
        arm = _name(name, items)
        if arm in found:
            raise _error(f"names the arm {arm!r} twice", (), sources)
        found[arm] = SweptArm(name, _layer(items, sources))
    return found


def _name(arm: str | None, items: Sequence[tuple[str, object]]) -> str:
    """`fcfs, 16`: values alone, as in the short form."""
    texts = [value if isinstance(value, str) else json.dumps(value) for _, value in items]
    return ", ".join(texts if arm is None else [arm, *texts])


def _layer(
    items: Sequence[tuple[str, object]], sources: Mapping[KeyPath, ValueSource]
) -> ConfigLayer:
    place = nearest_source(sources, ("sweep",))
    return override_layer([f"{key}={json.dumps(value)}" for key, value in items], place)


def _error(message: str, path: KeyPath, sources: Mapping[KeyPath, ValueSource]) -> ConfigError:
    place = nearest_source(sources, ("sweep", *path))
    return ConfigError(message, key=dotted(("sweep", *path)), source=place.name, line=place.line)
