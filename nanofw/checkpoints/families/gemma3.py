"""Gemma 3, text: windows in five layers of six, whose rope is one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family, LayerRopes
from nanofw.checkpoints.keys import ConfigKeys, refuse_both_directions
from nanofw.checkpoints.layer_ropes import ropes_by_kind
from nanofw.checkpoints.windows import layer_kinds, windows_by_kind
from nanofw.contracts.model_spec import ModelSpec


def _values(keys: ConfigKeys) -> Mapping[str, object]:
    refuse_both_directions(keys)
    return {
        "logits_cap": keys.cap("final_logit_softcapping"),
        "attention_scale": keys.scale("query_pre_attn_scalar") ** -0.5,
    }


def _ropes(keys: ConfigKeys, num_layers: int, head_dim: int) -> LayerRopes:
    thetas = {
        "full_attention": keys.value("rope_theta"),
        "sliding_attention": keys.value("rope_local_base_freq"),
    }
    return ropes_by_kind(keys, layer_kinds(keys, num_layers), head_dim, thetas=thetas)


FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    model_types=("gemma3_text",),
    defaults=MappingProxyType(
        {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_act": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-06,
            "eos_token_id": 1,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "layer_types": None,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
            "use_bidirectional_attention": False,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
        }
    ),
    read_windows=windows_by_kind,
    activation_key="hidden_activation",
    reach_is_stated=True,
    read_ropes=_ropes,
    read_values=_values,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Gemma3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
