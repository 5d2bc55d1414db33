"""SmolLM3: every fourth layer knows no positions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

from nanofw.checkpoints.family import Family, LayerRopes
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.layer_ropes import rope_in_some
from nanofw.checkpoints.windows import Windows, windows_by_types
from nanofw.contracts.model_spec import ModelSpec


def _rotates(keys: ConfigKeys, num_layers: int) -> list[bool]:
    """Which layers rotate: 1 in `no_rope_layers`, or all but each last of the interval."""
    stated: object = keys.value("no_rope_layers")
    if stated is None:
        interval = keys.count("no_rope_layer_interval", 1 << 20)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    listed = cast("list[object]", stated) if isinstance(stated, list) else []
    if len(listed) < num_layers:
        raise keys.error(
            "no_rope_layers", f"a list of {num_layers} numbers, 0 or 1", cast("object", stated)
        )
    return [bool(item) for item in listed[:num_layers]]


def _ropes(keys: ConfigKeys, num_layers: int, head_dim: int) -> LayerRopes:
    return rope_in_some(keys, num_layers, head_dim, rotates=_rotates(keys, num_layers))


def _windows(keys: ConfigKeys, num_layers: int) -> Windows:
    # The switch, and a window at all, are asked for only where no `layer_types` name the layers.
    is_on = keys.flag("use_sliding_window") and keys.value("sliding_window") is not None
    has_window = [is_on and not does for does in _rotates(keys, num_layers)]
    return windows_by_types(keys, num_layers, has_window)


FAMILY = Family(
    architecture="SmolLM3ForCausalLM",
    model_types=("smollm3",),
    defaults=MappingProxyType(
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
            "eos_token_id": 128001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "rope_theta": 2000000.0,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "layer_types": None,
        }
    ),
    read_windows=_windows,
    rounds_head_dim=True,
    read_ropes=_ropes,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a SmolLM3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
