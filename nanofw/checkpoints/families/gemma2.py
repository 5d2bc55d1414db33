"""Gemma 2: windows in every second layer, bounded scores and logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.keys import ConfigKeys, refuse_both_directions
from nanofw.checkpoints.windows import Windows, windows_by_kind
from nanofw.contracts.model_spec import ModelSpec


def _values(keys: ConfigKeys) -> Mapping[str, object]:
    refuse_both_directions(keys)
    return {
        "soft_cap": keys.cap("attn_logit_softcapping"),
        "logits_cap": keys.cap("final_logit_softcapping"),
        "attention_scale": keys.scale("query_pre_attn_scalar") ** -0.5,
    }


def _windows(keys: ConfigKeys, num_layers: int) -> Windows:
    return windows_by_kind(keys, num_layers, every=2)  # no key of the file changes it


FAMILY = Family(
    architecture="Gemma2ForCausalLM",
    model_types=("gemma2",),
    defaults=MappingProxyType(
        {
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_act": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-06,
            "eos_token_id": 1,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "layer_types": None,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
            "use_bidirectional_attention": None,
        }
    ),
    read_windows=_windows,
    activation_key="hidden_activation",
    read_values=_values,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Gemma2; see `Family.read`."""
    return FAMILY.read(config_json, folder)
