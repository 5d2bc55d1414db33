"""Small random checkpoints, saved as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "gqa_1_1": {"num_key_value_heads": 4},
    "gqa_8_1": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "wide_heads": {"head_dim": 64},
    "linear_rope": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    },
}


def save_qwen3(folder: Path, shape: str, *, shard_size: str = "1GB", seed: int = 0) -> Path:
    """A Qwen3 checkpoint of one of the `SHAPES`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**{**BASE, **SHAPES[shape]}))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder
