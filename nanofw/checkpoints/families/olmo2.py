"""OLMo 2: norms after attention and feed-forward part, queries and keys normalised whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="Olmo2ForCausalLM",
    model_types=("olmo2",),
    defaults=MappingProxyType(
        {
            "vocab_size": 50304,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-05,
            "eos_token_id": 50279,
            "tie_word_embeddings": False,
            "attention_bias": False,
        }
    ),
    rounds_head_dim=True,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Olmo2; see `Family.read`."""
    return FAMILY.read(config_json, folder)
