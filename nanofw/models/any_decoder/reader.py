"""What transformers' own configuration class says of a checkpoint. No torch.

Where a family means something by a key that is not asked here, the check after loading finds it
(`nanofw.models.any_decoder.trial`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nanofw.checkpoints.family import CONFIG, stated_architecture
from nanofw.checkpoints.files import shown
from nanofw.checkpoints.generation import read_eos_token_ids
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.weight_files import EMBEDDING, HEAD, find_weight_files, read_shapes
from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
from nanofw.errors import ModelError, PluginLoadError

_WINDOWED = "sliding_attention"
_LAYER_TYPES = ("full_attention", _WINDOWED)
_BY_LENGTH = ("dynamic", "longrope")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a checkpoint that transformers can load.

    Raises:
        ModelError: transformers cannot read it, or it is not a decoder of text alone whose layers
            all attend.
    """
    place = str(folder / CONFIG)
    config = load_config(folder)
    _refuse(config, config_json, place)
    heads = _count(config, place, "num_attention_heads")
    kv_heads, head_dim = _kv_shape(config, heads, place)
    num_layers = _count(config, place, "num_hidden_layers")
    keys = ConfigKeys(config_json, place, {"eos_token_id": config.eos_token_id})
    vocab_size = _count(config, place, "vocab_size")
    length, note = _length(config, place)
    hidden = _count(config, place, "hidden_size")
    total, active = _sizes(config, folder)
    return ModelSpec(
        architecture=stated_architecture(config_json),
        path=str(folder),
        dtype=_dtype(config),
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_width(config, 4 * hidden),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=length,
        eos_token_ids=read_eos_token_ids(keys, folder, vocab_size),
        tie_word_embeddings=bool(config.tie_word_embeddings),
        sliding_windows=_windows(config, num_layers, place),
        soft_cap=_soft_cap(config),
        layer_parameters=total,
        active_parameters=active,
        raw=MappingProxyType(dict(config_json)),
        notes=(note,) if note else (),
    )


def load_config(folder: Path) -> Any:
    """The configuration object that transformers makes of a folder. No code of it is run."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise PluginLoadError(
            f"model.name: transformers needs the package transformers ({error}): "
            "pip install 'nanofw[transformers]'"
        ) from error
    try:
        return transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ModelError(
            f"{folder / CONFIG}: transformers {transformers.__version__} cannot read it: "
            f"{type(error).__name__}: {reason}"
        ) from error


def _refuse(config: Any, config_json: Mapping[str, object], place: str) -> None:
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    reason = None
    if config_json.get("quantization_config"):
        reason = "its weights are quantized (quantization_config)"
    elif getattr(config, "sub_configs", None) or isinstance(config_json.get("text_config"), dict):
        reason = "its decoder is a part of a model of several parts, for images or sound"
    elif config.model_type not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        reason = f"transformers has no decoder of model_type {shown(config.model_type)}"
    elif getattr(config, "is_encoder_decoder", False):
        reason = "it has an encoder beside its decoder"
    elif getattr(config, "use_bidirectional_attention", False):
        reason = "its tokens see those that come after them (use_bidirectional_attention)"
    elif getattr(config, "is_heterogeneous", False) or config_json.get("per_layer_config"):
        reason = "its layers have different shapes (per_layer_config)"
    if reason is not None:
        raise ModelError(f"{place}: {reason}; model.name: transformers cannot run it")


def _kv_shape(config: Any, heads: int, place: str) -> tuple[int, int]:
    """Key heads, and the size of a key, which is that of a value in the pool, too."""
    if getattr(config, "kv_lora_rank", None):  # latent attention: expanded before it is kept
        return heads, int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False):
        kv_heads = getattr(config, "num_kv_heads", None) if _is_new_falcon(config) else 1
    if type(kv_heads) is not int or type(head_dim) is not int or heads % kv_heads:
        raise ModelError(
            f"{place}: {shown(heads)} query heads, {shown(kv_heads)} KV heads of "
            f"{shown(head_dim)}: model.name: transformers cannot run it"
        )
    return kv_heads, head_dim


def _is_new_falcon(config: Any) -> bool:
    return bool(getattr(config, "new_decoder_architecture", False))


def _windows(config: Any, num_layers: int, place: str) -> tuple[int | None, ...]:
    """By layer, as `layer_types` and `sliding_window` say."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    if kinds is None:
        return () if window is None else (window,) * num_layers
    unknown = sorted(set(kinds) - set(_LAYER_TYPES))
    if unknown:
        raise ModelError(
            f"{place}: layers of type {', '.join(map(str, unknown))} are not paged attention; "
            "model.name: transformers cannot run them"
        )
    windows = tuple(window if kind == _WINDOWED else None for kind in kinds)
    return windows if any(windows) else ()


def _soft_cap(config: Any) -> float | None:
    value = getattr(config, "attn_logit_softcapping", None)
    return None if value is None or config.model_type == "gemma3_text" else float(value)


def _length(config: Any, place: str) -> tuple[int, str]:
    """Positions, and a sentence where a rope that depends on the length of the batch bounds them.

    transformers computes the angles of all rows from the longest one; what is in the cache would
    then be wrong for the others.
    """
    names = ("max_position_embeddings", "max_sequence_length", "seq_length")
    length = next((value for name in names if (value := getattr(config, name, None))), None)
    if type(length) is not int:
        raise ModelError(f"{place}: max_position_embeddings should be a number, not {length!r}")
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    found = next((part for part in parts if part.get("rope_type") in _BY_LENGTH), None)
    if found is None:
        return length, ""
    trained = int(found.get("original_max_position_embeddings") or length)
    if found["rope_type"] == "dynamic":
        trained = length
    return min(length, trained), (
        f"{place}: rope type {found['rope_type']} changes with the longest text of a batch; "
        f"through transformers {min(length, trained)} positions are served, where it does not"
    )


def _count(config: Any, place: str, key: str) -> int:
    value = getattr(config, key, None)
    if type(value) is not int or value < 1:
        raise ModelError(f"{place}: {key} should be a positive integer, not {shown(value)}")
    return value


def _width(config: Any, usual: int) -> int:
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    found = next((value for name in names if (value := getattr(config, name, None))), usual)
    return found if type(found) is int else usual


def _dtype(config: Any) -> str:
    name = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return name if name in BYTES_PER_ELEMENT else "float32"


def _sizes(config: Any, folder: Path) -> tuple[int, int] | tuple[None, None]:
    """Weights of the layers and those that one token meets, from the headers of the files.

    Of the experts of a layer a token meets as many as the configuration says.
    """
    try:
        files = find_weight_files(folder)
        shapes = {
            name: math.prod(shape)
            for file in files.files
            for name, shape in read_shapes(files.folder / file).items()
        }
    except (ModelError, KeyError, TypeError):
        return None, None
    layers = {name: size for name, size in shapes.items() if name not in (EMBEDDING, HEAD)}
    experts = sum(size for name, size in layers.items() if ".experts." in name)
    total = sum(layers.values())
    chosen, number = (
        next((value for name in names if (value := getattr(config, name, None))), 1)
        for names in (_CHOSEN, _EXPERTS)
    )
    if not total:
        return None, None
    active = total - experts + experts * int(chosen) // max(int(number), int(chosen))
    return total, active
