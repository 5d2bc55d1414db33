"""Phi-3, and Phi-4 where it states the same architecture: partial rotation, LongRoPE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.windows import windows_in_all_layers
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="Phi3ForCausalLM",
    model_types=("phi3",),
    defaults=MappingProxyType(
        {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05,
            "eos_token_id": 32000,
            "tie_word_embeddings": False,
            "sliding_window": None,
            "partial_rotary_factor": 1.0,
        }
    ),
    read_windows=windows_in_all_layers,
    rounds_head_dim=True,
    rope_types=("default", "longrope"),
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Phi3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
