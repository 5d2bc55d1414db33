"""Merging of layers: a mapping merges, everything else replaces, and a new name drops options."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nanofw.config.schema import COMPONENT_SECTIONS, INPUT_CHOICES
from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, nearest_source, paths_below
from nanofw.errors import ConfigError
from nanofw.narrowing import is_dict

Interpolate: TypeAlias = Callable[[str, KeyPath, Mapping[str, object]], object]
"""What a text comes to at a key of some values. Raises ValueError when it comes to nothing."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A value of a lower layer that a higher one made meaningless.

    Attributes:
        path: its key.
        value: as it was written.
        source: where it was set.
        reason: which choice was made above it, and where.
    """

    path: KeyPath
    value: object
    source: ValueSource
    reason: str


@dataclass(slots=True)
class Merged:
    """All layers in one; interpolations are unresolved."""

    data: dict[str, object] = field(default_factory=dict[str, object])
    sources: dict[KeyPath, ValueSource] = field(default_factory=dict[KeyPath, ValueSource])
    texts: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    dropped: list[Dropped] = field(default_factory=list[Dropped])


def merge(layers: Sequence[ConfigLayer], interpolate: Interpolate) -> Merged:
    """Merge layers, lowest first."""
    names = _Names(layers, interpolate)
    merged = Merged()
    for layer in layers:
        for section, core_keys in COMPONENT_SECTIONS.items():
            _drop_options(merged, layer, section, core_keys, names)
        _drop_inputs(merged, layer)
        _merge_into(merged, merged.data, layer.data, (), layer)
    return merged


class _Names:
    """What a component's `name` comes to when it is an interpolation.

    It is read in the context of all layers together: the same in whichever layer it stands.
    """

    def __init__(self, layers: Sequence[ConfigLayer], interpolate: Interpolate) -> None:
        self._layers, self._interpolate = layers, interpolate
        self._context: dict[str, object] | None = None

    def resolve(self, name: object, section: tuple[str, ...]) -> object:
        """The name, resolved."""
        if not isinstance(name, str) or "${" not in name:
            return name
        if self._context is None:
            context = Merged()
            for layer in self._layers:
                _merge_into(context, context.data, layer.data, (), layer)
            self._context = context.data
        try:
            return self._interpolate(name, (*section, "name"), self._context)
        except ValueError:  # told with its place when all layers are resolved, if it still counts
            return name


def _drop_options(
    merged: Merged,
    layer: ConfigLayer,
    section: tuple[str, ...],
    core_keys: frozenset[str],
    names: _Names,
) -> None:
    """A layer that names another component drops the options of the one below."""
    below, above = _section(merged.data, section), _section(layer.data, section)
    if below is None or above is None or "name" not in above or "name" not in below:
        return
    old, new = names.resolve(below["name"], section), names.resolve(above["name"], section)
    if old == new:
        return
    source = nearest_source(layer.sources, (*section, "name"))
    for key in [key for key in below if key not in core_keys]:
        if below[key] is not None:
            _record(merged, (*section, key), f"{source} changes the name from {old} to {new}")
        _forget(merged, below.pop(key), (*section, key))


def _drop_inputs(merged: Merged, layer: ConfigLayer) -> None:
    """A layer that says where requests come from drops what lower layers said of it."""
    below, above = _section(merged.data, ("input",)), _section(layer.data, ("input",))
    if above is None:
        return
    chosen = [key for key in INPUT_CHOICES if above.get(key) is not None]
    if len(chosen) > 1:
        source = nearest_source(layer.sources, ("input", chosen[1]))
        raise ConfigError(
            f"stands beside input.{chosen[0]}; requests come from one place: name one of "
            f"{', '.join(INPUT_CHOICES)}",
            key=f"input.{chosen[1]}",
            source=source.name,
            line=source.line,
        )
    if below is None:
        return
    for key in INPUT_CHOICES:
        if chosen and key not in chosen and below.get(key) is not None:
            source = nearest_source(layer.sources, ("input", chosen[0]))
            _record(merged, ("input", key), f"{source} sets input.{chosen[0]}")
            _forget(merged, below[key], ("input", key))
            below[key] = None


def _record(merged: Merged, path: KeyPath, reason: str) -> None:
    value: object = merged.data
    for part in path:
        value = value[str(part)] if is_dict(value) else None
    source = nearest_source(merged.sources, path)
    merged.dropped.append(Dropped(path, value, source, reason))


def _forget(merged: Merged, value: object, path: KeyPath) -> None:
    """Forget where a value and what is below it came from."""
    for key in paths_below(value, path):
        merged.sources.pop(key, None)
        merged.texts.pop(key, None)


def _section(data: Mapping[str, object], section: tuple[str, ...]) -> dict[str, object] | None:
    value: object = data
    for part in section:
        value = value.get(part) if is_dict(value) else None
    return value if is_dict(value) else None


def _merge_into(
    merged: Merged,
    target: dict[str, object],
    data: dict[str, object],
    path: KeyPath,
    layer: ConfigLayer,
) -> None:
    for key, value in data.items():
        here = (*path, key)
        old = target.get(key)
        if is_dict(old) and is_dict(value):
            merged.sources[here] = layer.sources.get(here, ValueSource(layer.name))
            _merge_into(merged, old, value, here, layer)
            continue
        _forget(merged, old, here)
        target[key] = copy.deepcopy(value)
        for path_below in paths_below(value, here):
            if path_below in layer.sources:
                merged.sources[path_below] = layer.sources[path_below]
            if path_below in layer.texts:
                merged.texts[path_below] = layer.texts[path_below]
