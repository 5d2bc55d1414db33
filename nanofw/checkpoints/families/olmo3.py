"""OLMo 3: OLMo 2 with windows in three layers of four; a scaled rope is that of the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nanofw.checkpoints.family import Family, LayerRopes
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.layer_ropes import ropes_by_kind
from nanofw.checkpoints.windows import windows_by_kind
from nanofw.contracts.model_spec import ModelSpec

_THETA = 500000.0


def _ropes(keys: ConfigKeys, num_layers: int, head_dim: int) -> LayerRopes:
    # As in transformers, a theta at the top of the file is that of layers with full attention.
    thetas = {"full_attention": keys.value("rope_theta"), "sliding_attention": _THETA}
    return ropes_by_kind(keys, num_layers, head_dim, thetas=thetas)


FAMILY = Family(
    architecture="Olmo3ForCausalLM",
    model_types=("olmo3",),
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
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "layer_types": None,
            "rope_theta": 500000.0,
        }
    ),
    read_windows=windows_by_kind,
    rounds_head_dim=True,
    read_ropes=_ropes,
)


def read(config_json: Mapping[str, Any], folder: Path) -> ModelSpec:
    """The description of a Olmo3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
