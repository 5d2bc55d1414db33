"""Reading `config.json` of a checkpoint folder into a `ModelSpec`, without torch.

Old and new spellings are read: `rope_parameters` or `rope_theta` with `rope_scaling`, `dtype` or
`torch_dtype`, `head_dim` given or not, one or several end tokens, in `config.json` or in
`generation_config.json`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
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
_QWEN_WINDOWLESS = 28  # first layer with a window where a file does not say it
_LAYER_TYPES = ("full_attention", "sliding_attention")

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def read_checkpoint(folder: Path) -> ModelSpec:
    """The description of the checkpoint in a folder; its dtype is the checkpoint's own.

    Raises:
        ModelError: no or broken `config.json`, missing keys, quantised weights, a decoder inside
            a model of other kind, an unknown rope, layer or element type.
    """
    config = read_json(folder / "config.json")
    place = str(folder / "config.json")
    _refuse_quantised(config, place)
    architecture = _architecture(config, place)
    if isinstance(config.get("text_config"), dict):
        raise ModelError(
            f"{place}: {architecture} keeps its decoder in text_config, beside parts for images "
            "or sound; only plain decoders are supported"
        )
    missing = [key for key in _REQUIRED if config.get(key) is None]
    if missing:
        raise ModelError(f"{place} lacks {', '.join(missing)} (each an integer)")
    for key in (*_REQUIRED, "num_key_value_heads", "head_dim"):
        _check_count(key, config.get(key), place)
    num_layers, num_heads = config["num_hidden_layers"], config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{place}: {num_heads} attention heads cannot share {num_kv_heads} KV heads"
        )
    rope = _rope(config, place)
    return ModelSpec(
        architecture=architecture,
        path=str(folder),
        dtype=_dtype(config, place),
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, place),
        max_model_len=_max_model_len(config, rope, place),
        eos_token_ids=_eos_token_ids(config, folder),
        norm_eps=_norm_eps(config, place),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", place),
        attention_bias=_flag(config, "attention_bias", place),
        rope=MappingProxyType(rope),
        sliding_windows=_sliding_windows(config, place),
        raw=MappingProxyType(config),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file, or ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is no checkpoint: it has no {path.name}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)


def _refuse_quantised(config: Mapping[str, Any], place: str) -> None:
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return
    method = cast("dict[str, Any]", found).get("quant_method") if isinstance(found, dict) else None
    raise ModelError(
        f"{place}: quantisation {method or 'of an unknown kind'} is not supported; supported: "
        f"weights in {', '.join(BYTES_PER_ELEMENT)}"
    )


def _architecture(config: Mapping[str, Any], place: str) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelError(f"{place} does not say which architecture it is (key architectures)")
    return str(cast("list[Any]", names)[0])


def _dtype(config: Mapping[str, Any], place: str) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    name = name.removeprefix("torch.")
    if name not in BYTES_PER_ELEMENT:
        raise ModelError(
            f"{place}: weights in {name} are not supported; supported: "
            f"{', '.join(BYTES_PER_ELEMENT)}"
        )
    return name


def _check_count(key: str, value: object, place: str) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise ModelError(f"{place}: {key} should be a positive integer, not {value!r}")


def _flag(config: Mapping[str, Any], key: str, place: str) -> bool:
    """False where it is not said; a word such as "false" would count as true."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"{place}: {key} should be true or false, not {value!r}")
    return bool(value)


def _norm_eps(config: Mapping[str, Any], place: str) -> float:
    value = config.get("rms_norm_eps")
    value = 1e-6 if value is None else value
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ModelError(f"{place}: rms_norm_eps should be a number, 0 or greater, not {value!r}")
    return float(value)


def _head_dim(config: Mapping[str, Any], place: str) -> int:
    given = config.get("head_dim")
    if given is not None:
        return given
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads:
        raise ModelError(
            f"{place}: no head_dim, and hidden_size {hidden} is no multiple of {heads} heads"
        )
    return hidden // heads


def _rope(config: Mapping[str, Any], place: str) -> dict[str, Any]:
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


def _max_model_len(config: Mapping[str, Any], rope: Mapping[str, Any], place: str) -> int:
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


def _eos_token_ids(config: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """End tokens of both files, those of `generation_config.json` first."""
    generation = folder / "generation_config.json"
    sources = [read_json(generation)] if generation.is_file() else []
    found: dict[int, None] = {}
    for source in (*sources, config):
        value = source.get("eos_token_id")
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(item, int) and 0 <= item < config["vocab_size"]:
                found[item] = None
    return tuple(found)


def _sliding_windows(config: Mapping[str, Any], place: str) -> tuple[int | None, ...]:
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
    family = config.get("model_type") or _architecture(config, "")
    return str(family).lower().startswith("qwen")
