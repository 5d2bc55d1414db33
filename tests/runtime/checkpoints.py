"""Qwen3 checkpoints of random weights, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "gqa2": {},
    "tied": {"tie_word_embeddings": True},
    "gqa1": {"num_key_value_heads": 4},
    "gqa8": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "wide_heads": {"head_dim": 40},
    "linear_rope": {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    },
    "bias": {"attention_bias": True},
    "window": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
}


def write_qwen3(folder: Path, *, max_shard_size: str = "5GB", **changes: Any) -> torch.nn.Module:
    """Write a checkpoint; the reference model in float32, ready to run."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**(BASE | changes))).float().eval()
    for name, parameter in model.named_parameters():  # biases and norms start out as constants
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


@torch.inference_mode()
def reference_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """float32[t, vocab], the logits after each token."""
    return model(torch.tensor([tokens])).logits[0]
