"""Layers of configuration taken out of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping

from nanofw.config.source import ConfigLayer, KeyPath
from nanofw.narrowing import is_dict


def part(whole: ConfigLayer, path: KeyPath, at: KeyPath = ()) -> ConfigLayer:
    """The layer below a key, put at another key, with the places of its values."""
    value: object = whole.data
    for key in path:
        value = value[str(key)] if is_dict(value) else None
    data: dict[str, object] = value if is_dict(value) else {}
    for key in reversed(at):
        data = {str(key): data}
    sources = {
        (*at, *place[len(path) :]): source
        for place, source in whole.sources.items()
        if place[: len(path)] == path and (at or len(place) > len(path))
    }
    return ConfigLayer(whole.name, data, sources)


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """The upper one over the lower one, mapping by mapping."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        if is_dict(old) and is_dict(value):
            value = merged(old, value)
        made[key] = value
    return made
