"""Which layers attend to a window, as the families that know windows say it.

Each reader gives every layer's window in tokens, None for a layer that attends to everything, and
nothing at all where no layer has a window.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from nanofw.checkpoints.files import shown
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.errors import ModelError

Windows: TypeAlias = tuple[int | None, ...]

_LAYER_TYPES = ("full_attention", "sliding_attention")
_MOST_PATTERN = 1 << 14
_OLD_NAMES = {"attention": "full_attention"}


def no_windows(keys: ConfigKeys, num_layers: int) -> Windows:
    """The family has no windows, whatever the file says."""
    return ()


def windows_everywhere(keys: ConfigKeys, num_layers: int) -> Windows:
    """`sliding_window` is the window of every layer, or of those that `layer_types` names."""
    kinds = _layer_types(keys, num_layers) or ["sliding_attention"] * num_layers
    # Here null is not "not there": the family's default is a window.
    if "sliding_window" in keys.config and keys.config["sliding_window"] is None:
        return ()
    return _by_kind(kinds, _window(keys))


def windows_in_all_layers(keys: ConfigKeys, num_layers: int) -> Windows:
    """`sliding_window` is the window of every layer; null, or not there: no layer has one."""
    if keys.stated("sliding_window") is None:
        return ()
    return (_window(keys),) * num_layers


def windows_by_kind(keys: ConfigKeys, num_layers: int, every: int | None = None) -> Windows:
    """`sliding_window` holds in the layers that `layer_kinds` says."""
    kinds = layer_kinds(keys, num_layers, every)
    if "sliding_attention" in kinds and keys.stated("sliding_window") is None:
        raise keys.error("sliding_window", "a number of tokens", None)
    return _by_kind(kinds, _window(keys)) if "sliding_attention" in kinds else ()


def windows_by_types(keys: ConfigKeys, num_layers: int, otherwise: list[bool]) -> Windows:
    """`sliding_window` holds in the layers that `layer_types` names, or `otherwise` says."""
    kinds = _layer_types(keys, num_layers) or [_LAYER_TYPES[has] for has in otherwise]
    return _by_kind(kinds, _window(keys)) if "sliding_attention" in kinds else ()


def layer_kinds(keys: ConfigKeys, num_layers: int, every: int | None = None) -> list[str]:
    """`layer_types`, or `full_attention` in the last layer of each group of this size.

    Args:
        every: how many; None: the file's `sliding_window_pattern` says it.
    """
    kinds = _layer_types(keys, num_layers)
    if kinds is not None:
        return kinds
    pattern = every or keys.count("sliding_window_pattern", num_layers + _MOST_PATTERN)
    return [_LAYER_TYPES[(layer + 1) % pattern != 0] for layer in range(num_layers)]


def windows_by_layer(keys: ConfigKeys, num_layers: int) -> Windows:
    """Where `use_sliding_window` is true: `layer_types`, or the layers from `max_window_layers` on.

    A switch that is off turns every window off, whatever `layer_types` says.
    """
    kinds = _layer_types(keys, num_layers)
    is_null = "sliding_window" in keys.config and keys.config["sliding_window"] is None
    if not keys.flag("use_sliding_window") or is_null:
        return ()
    if kinds is None:
        first = keys.integer("max_window_layers")
        kinds = [_LAYER_TYPES[layer >= first] for layer in range(num_layers)]
    return _by_kind(kinds, _window(keys))


def windows_as_stated(keys: ConfigKeys, num_layers: int) -> Windows:
    """For families that nanofw does not know: a window that is stated and not switched off."""
    kinds = _layer_types(keys, num_layers) or ["sliding_attention"] * num_layers
    if keys.value("sliding_window") is None or not keys.flag("use_sliding_window"):
        return ()
    return _by_kind(kinds, _window(keys))


def _by_kind(kinds: list[str], window: int) -> Windows:
    windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else ()


def _window(keys: ConfigKeys) -> int:
    window = keys.value("sliding_window")
    if type(window) is not int or window < 1:
        raise keys.error("sliding_window", "a number of tokens", window)
    return window


def _layer_types(keys: ConfigKeys, num_layers: int) -> list[str] | None:
    """The kind of each layer, where the file says it."""
    types = keys.value("layer_types")
    if types is None:
        return None
    if not isinstance(types, list):
        raise keys.error("layer_types", "a list of words", types)
    kinds = [_OLD_NAMES.get(str(kind), str(kind)) for kind in cast("list[object]", types)]
    unknown = sorted(set(kinds) - set(_LAYER_TYPES))
    if unknown:
        raise ModelError(
            f"{keys.place}: layer_types: layers of type {shown(', '.join(unknown))[1:-1]} are not "
            f"supported; supported: {', '.join(_LAYER_TYPES)}"
        )
    if len(kinds) != num_layers:
        raise ModelError(
            f"{keys.place}: layer_types should name {num_layers} layers, not {len(kinds)}"
        )
    return kinds
