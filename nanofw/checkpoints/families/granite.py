"""Granite 3, dense: multipliers of embeddings, residuals, scores and logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.contracts.model_spec import ModelSpec


def _values(keys: ConfigKeys) -> Mapping[str, object]:
    return {
        "embedding_scale": keys.scale("embedding_multiplier"),
        "residual_scale": keys.scale("residual_multiplier"),
        "attention_scale": keys.scale("attention_multiplier"),
        "logits_scale": 1.0 / keys.scale("logits_scaling"),
    }


FAMILY = Family(
    architecture="GraniteForCausalLM",
    model_types=("granite",),
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
            "rms_norm_eps": 1e-06,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        }
    ),
    rounds_head_dim=True,
    read_values=_values,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Granite; see `Family.read`."""
    return FAMILY.read(config_json, folder)
