"""Qwen3, dense: heads of 128 unless the file says otherwise; biases of the attention as the file
says; windows only where `use_sliding_window` is true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.windows import windows_by_layer
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    model_types=("qwen3",),
    defaults=MappingProxyType(
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "eos_token_id": None,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "layer_types": None,
        }
    ),
    read_windows=windows_by_layer,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Qwen3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
