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

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral_window": ("Mistral", {"sliding_window": 13}),
    "qwen2_yarn": (
        "Qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "qwen3_dynamic": (
        "Qwen3",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
    ),
}
"""Other families, ropes, biases and windows: the family, and what is changed in the `BASE`."""


def save_qwen3(folder: Path, shape: str, *, shard_size: str = "1GB", seed: int = 0) -> Path:
    """A Qwen3 checkpoint of one of the `SHAPES`."""
    return save_model(folder, "Qwen3", shard_size=shard_size, seed=seed, **SHAPES[shape])


def save_model(
    folder: Path, family: str, *, shard_size: str = "1GB", seed: int = 0, **changes: Any
) -> Path:
    """A checkpoint of random weights, biases included."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**BASE, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data = 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder
