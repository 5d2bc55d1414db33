"""The sliding windows of a model's layers, as `config.json` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from nanofw.errors import ModelError

_QWEN_WINDOWLESS = 28  # first layer with a window where a file does not say it
_LAYER_TYPES = ("full_attention", "sliding_attention")


def sliding_windows(config: Mapping[str, Any], place: str) -> tuple[int | None, ...]:
    """Each layer's window; empty when every layer attends to everything."""
    kinds = _layer_types(config, place)
    window = config.get("sliding_window")
    # Qwen states whether the window is in use, and by default it is not; others just have one.
    is_used = config.get("use_sliding_window", not _is_qwen(config))
    if window is None or not is_used:
        return ()
    if not isinstance(window, int) or window < 1:
        raise ModelError(f"{place}: sliding_window should be a number of tokens, not {window!r}")
    if kinds is None:
        first = config.get("max_window_layers", _QWEN_WINDOWLESS) if _is_qwen(config) else 0
        kinds = [_LAYER_TYPES[i >= first] for i in range(config["num_hidden_layers"])]
    windows = [window if kind == "sliding_attention" else None for kind in kinds]
    return tuple(windows) if any(windows) else ()


def _layer_types(config: Mapping[str, Any], place: str) -> list[str] | None:
    """The kind of each layer, where the file says it."""
    types = config.get("layer_types")
    if types is None:
        return None
    kinds = [str(kind) for kind in cast("list[Any]", types)] if isinstance(types, list) else []
    unknown = sorted(set(kinds) - set(_LAYER_TYPES))
    if unknown:
        raise ModelError(
            f"{place}: layers of type {', '.join(unknown)} are not supported; supported: "
            f"{', '.join(_LAYER_TYPES)}"
        )
    if len(kinds) != config["num_hidden_layers"]:
        raise ModelError(
            f"{place}: layer_types should name {config['num_hidden_layers']} layers, not "
            f"{len(kinds)}"
        )
    return kinds


def _is_qwen(config: Mapping[str, Any]) -> bool:
    family = config.get("model_type") or config["architectures"][0]
    return str(family).lower().startswith("qwen")
