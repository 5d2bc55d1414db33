"""What the family's own `config.json` means. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanofw.plugins import ModelSpec

BYTES_OF_EXPERTS = 1


def read(config_json: Mapping[str, Any], folder: Path) -> ModelSpec:
    width, heads, kv_heads = (config_json[key] for key in ("width", "heads", "kv_heads"))
    head_width, experts = config_json["head_width"], config_json["experts"]
    chosen, depth = config_json["experts_per_token"], config_json["depth"]
    attention = width * head_width * (2 * heads + 3 * kv_heads)  # with an adapter of the values
    expert = 2 * width * config_json["expert_width"]
    router = width * experts
    return ModelSpec(
        architecture="OddForCausalLM",
        path=str(folder),
        dtype="float32",
        vocab_size=config_json["vocabulary"],
        hidden_size=width,
        intermediate_size=chosen * config_json["expert_width"],
        num_layers=depth,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_width,
        max_model_len=config_json["positions"],
        eos_token_ids=(config_json["end"],),
        tie_word_embeddings=True,
        layer_parameters=depth * (attention + router + experts * expert),
        active_parameters=depth * (attention + router + chosen * expert),
        layer_bytes=depth * (4 * (attention + router) + BYTES_OF_EXPERTS * experts * expert),
        kv_elements=2 * depth * kv_heads * head_width,
        raw=config_json,
    )
