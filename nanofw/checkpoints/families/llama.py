"""Llama 1 to 3 and what states the same architecture: no windows; biases as the file says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="LlamaForCausalLM",
    model_types=("llama",),
    defaults=MappingProxyType(
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        }
    ),
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Llama; see `Family.read`."""
    return FAMILY.read(config_json, folder)
