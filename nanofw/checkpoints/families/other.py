"""A decoder that nanofw has no module for: its shape must be stated, the rest is what is usual."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.family import Family
from nanofw.checkpoints.windows import windows_as_stated
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="",
    model_types=(),
    defaults=MappingProxyType(
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": None,
            "hidden_activation": None,
            "rms_norm_eps": 1e-6,
            "eos_token_id": None,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "use_sliding_window": True,
            "sliding_window": None,
            "layer_types": None,
        }
    ),
    read_windows=windows_as_stated,
)

NOT_DENSE = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "kv_lora_rank",
    "state_size",
    "ssm_state_size",
    "mamba_d_state",
)
"""Keys of decoders that do not compute every weight for every token, or keep no plain KV."""


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a decoder of any architecture; see `Family.read`."""
    return FAMILY.read(config_json, folder)
