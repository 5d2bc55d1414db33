"""Reading `config.json` of a checkpoint folder into a `ModelSpec`, without torch.

Old and new spellings are read: `rope_parameters` or `rope_theta` with `rope_scaling`, `dtype` or
`torch_dtype`, `head_dim` given or not, one or several end tokens, in `config.json` or in
`generation_config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from nanofw.checkpoints.json_file import read_json
from nanofw.checkpoints.rope import max_model_len, rope_of
from nanofw.checkpoints.windows import sliding_windows
from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
from nanofw.errors import ModelError

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
    _check_shape(config, architecture, place)
    rope = rope_of(config, place)
    return ModelSpec(
        architecture=architecture,
        path=str(folder),
        dtype=_dtype(config, place),
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=_head_dim(config, place),
        max_model_len=max_model_len(config, rope, place),
        eos_token_ids=_eos_token_ids(config, folder),
        norm_eps=_norm_eps(config, place),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", place),
        attention_bias=_flag(config, "attention_bias", place),
        rope=MappingProxyType(rope),
        sliding_windows=sliding_windows(config, place),
        raw=MappingProxyType(config),
    )


def _check_shape(config: Mapping[str, Any], architecture: str, place: str) -> None:
    """Refuse a file without the numbers of a plain decoder."""
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
    num_heads, num_kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if num_kv_heads and num_heads % num_kv_heads:
        raise ModelError(
            f"{place}: {num_heads} attention heads cannot share {num_kv_heads} KV heads"
        )


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
            f"{place}: no head_dim, and hidden_size {hidden} is not a multiple of {heads} heads"
        )
    return hidden // heads


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
