"""Checkpoints of random weights, written by transformers."""

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

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 48,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_theta": 500.0,
        "original_max_position_embeddings": 64,
    },
}
"""Each rope type, with a trained length within what the tests compute."""

_WINDOWS = ["full_attention", "sliding_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral_window": ("Mistral", {"sliding_window": 9}),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2_layer_types": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "layer_types": _WINDOWS},
    ),
    **{
        f"{family.lower()}_{name}": (family, {"rope_parameters": rope})
        for family in ("Llama", "Qwen2", "Qwen3")
        for name, rope in ROPES.items()
    },
}
"""By name: the family, and what is changed in the `BASE`."""


def write_model(
    folder: Path, family: str, *, max_shard_size: str = "5GB", **changes: Any
) -> torch.nn.Module:
    """Write a checkpoint; the reference model in float32, ready to run."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**(BASE | changes))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    for name, parameter in model.named_parameters():  # biases and norms start out as constants
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def write_qwen3(folder: Path, *, max_shard_size: str = "5GB", **changes: Any) -> torch.nn.Module:
    """A checkpoint of Qwen3; see `write_model`."""
    return write_model(folder, "Qwen3", max_shard_size=max_shard_size, **changes)


@torch.inference_mode()
def reference_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """float32[t, vocab], the logits after each token."""
    return model(torch.tensor([tokens])).logits[0]
