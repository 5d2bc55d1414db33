"""StarCoder 2: LayerNorm, a feed-forward part without a gate, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.windows import windows_in_all_layers
from nanofw.contracts.model_spec import ModelSpec


def _values(keys: ConfigKeys) -> Mapping[str, object]:
    return {"has_biases": keys.flag("use_bias")}


FAMILY = Family(
    architecture="Starcoder2ForCausalLM",
    model_types=("starcoder2",),
    defaults=MappingProxyType(
        {
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "head_dim": None,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-05,
            "eos_token_id": 50256,
            "tie_word_embeddings": True,
            "sliding_window": None,
            "use_bias": True,
        }
    ),
    read_windows=windows_in_all_layers,
    rounds_head_dim=True,
    norm_eps_key="norm_epsilon",
    read_values=_values,
    num_mlp_matrices=2,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Starcoder2; see `Family.read`."""
    return FAMILY.read(config_json, folder)
