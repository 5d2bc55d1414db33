"""GLM-4 as it was first published: half of each head is rotated, neighbours together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="GlmForCausalLM",
    model_types=("glm",),
    defaults=MappingProxyType(
        {
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1.5625e-07,
            "eos_token_id": [151329, 151336, 151338],
            "tie_word_embeddings": False,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
        }
    ),
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Glm; see `Family.read`."""
    return FAMILY.read(config_json, folder)
