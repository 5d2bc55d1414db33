"""Mistral, dense: every layer has the window, 4096 tokens unless the file says null; no biases.

With `layer_types` it is a Ministral by another name, and only the layers that it names have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.windows import windows_everywhere
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="MistralForCausalLM",
    model_types=("mistral",),
    defaults=MappingProxyType(
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "sliding_window": 4096,
            "layer_types": None,
        }
    ),
    read_windows=windows_everywhere,
    rounds_head_dim=True,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Mistral; see `Family.read`."""
    return FAMILY.read(config_json, folder)
