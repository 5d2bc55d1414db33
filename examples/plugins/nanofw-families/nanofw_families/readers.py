"""What both families' `config.json` means. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanofw.plugins import ModelSpec


def read_gpt_neox(config_json: Mapping[str, Any], folder: Path) -> ModelSpec:
    """Half a dozen keys have names or defaults of their own."""
    hidden, heads = config_json["hidden_size"], config_json["num_attention_heads"]
    rope = {
        "rope_type": "default",
        "rope_theta": float(config_json.get("rotary_emb_base", 10000)),
        "partial_rotary_factor": float(config_json.get("rotary_pct", 0.25)),
        **(config_json.get("rope_parameters") or {}),
    }
    return ModelSpec(
        **_common(config_json, folder),
        intermediate_size=config_json["intermediate_size"],
        num_kv_heads=heads,
        head_dim=hidden // heads,
        norm_eps=config_json.get("layer_norm_eps", 1e-5),
        attention_bias=config_json.get("attention_bias", True),
        mlp_bias=True,
        num_mlp_matrices=2,
        rope=rope,
        raw={"hidden_act": "gelu", **config_json},
    )


def read_qwen3_moe(config_json: Mapping[str, Any], folder: Path) -> ModelSpec:
    """Sizes are stated: of the experts of a layer a token meets a few."""
    if config_json.get("mlp_only_layers") or config_json.get("decoder_sparse_step", 1) != 1:
        raise ValueError(f"{folder}/config.json: layers without experts are not supported")
    if config_json.get("use_sliding_window"):
        raise ValueError(f"{folder}/config.json: use_sliding_window is not supported")
    hidden, heads = config_json["hidden_size"], config_json["num_attention_heads"]
    head_dim = config_json.get("head_dim") or hidden // heads
    kv_heads, depth = config_json["num_key_value_heads"], config_json["num_hidden_layers"]
    # transformers 5 writes `num_local_experts`, published files have `num_experts`.
    experts = config_json.get("num_experts") or config_json["num_local_experts"]
    chosen = config_json["num_experts_per_tok"]
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    expert, router = 3 * hidden * config_json["moe_intermediate_size"], hidden * experts
    theta = {"rope_type": "default", "rope_theta": float(config_json.get("rope_theta", 1e4))}
    return ModelSpec(
        **_common(config_json, folder),
        intermediate_size=config_json["moe_intermediate_size"],
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=config_json["rms_norm_eps"],
        rope=theta | (config_json.get("rope_parameters") or config_json.get("rope_scaling") or {}),
        layer_parameters=depth * (attention + router + experts * expert),
        active_parameters=depth * (attention + router + chosen * expert),
        attention_bias=config_json.get("attention_bias", False),
        family_values={
            "num_experts": experts,
            "num_chosen": chosen,
            "norm_topk_prob": config_json.get("norm_topk_prob", False),
        },
        raw=config_json,
    )


def _common(config_json: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        "architecture": config_json["architectures"][0],
        "path": str(folder),
        "dtype": config_json.get("dtype") or config_json.get("torch_dtype") or "float32",
        "vocab_size": config_json["vocab_size"],
        "hidden_size": config_json["hidden_size"],
        "num_layers": config_json["num_hidden_layers"],
        "num_heads": config_json["num_attention_heads"],
        "max_model_len": config_json["max_position_embeddings"],
        "eos_token_ids": _end_tokens(config_json, folder),
        "tie_word_embeddings": config_json.get("tie_word_embeddings", False),
    }


def _end_tokens(config_json: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """Those of `generation_config.json`, which chat models need, and of `config.json`."""
    file = folder / "generation_config.json"
    stated = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found: list[Any] = []
    for source in (stated, config_json):
        value = source.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(token for token in found if token is not None))
