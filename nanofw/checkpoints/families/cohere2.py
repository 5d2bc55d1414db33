"""Command R7B and Command A: three layers of four have a window and rotate, the fourth does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family, LayerRopes
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.layer_ropes import rope_in_some
from nanofw.checkpoints.windows import layer_kinds, windows_by_kind
from nanofw.contracts.model_spec import ModelSpec


def _values(keys: ConfigKeys) -> Mapping[str, object]:
    return {"logits_scale": keys.scale("logit_scale")}


def _ropes(keys: ConfigKeys, num_layers: int, head_dim: int) -> LayerRopes:
    rotates = [kind == "sliding_attention" for kind in layer_kinds(keys, num_layers)]
    return rope_in_some(keys, num_layers, head_dim, rotates=rotates)


FAMILY = Family(
    architecture="Cohere2ForCausalLM",
    model_types=("cohere2",),
    defaults=MappingProxyType(
        {
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-05,
            "eos_token_id": 255001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "logit_scale": 0.0625,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "layer_types": None,
        }
    ),
    read_windows=windows_by_kind,
    rounds_head_dim=True,
    norm_eps_key="layer_norm_eps",
    read_ropes=_ropes,
    read_values=_values,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Cohere2; see `Family.read`."""
    return FAMILY.read(config_json, folder)
