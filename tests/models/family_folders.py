"""Random tiny checkpoints of each family. A folder is a function of its family and seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.checkpoints.both import load_theirs
from tests.fuzz.folders import make_tensors

LONGEST = 96
"""Positions that the tests compute; trained lengths lie below and above."""
MODEL_TYPES = {"Gemma3": "gemma3_text"}


class Dice(random.Random):
    def one(self, *values: Any) -> Any:
        return self.choice(values)

    def some(self, **values: Any) -> dict[str, Any]:
        """About half of the keys."""
        return {key: value for key, value in values.items() if self.random() < 0.5}

    def kinds(self, count: int) -> list[str]:
        return [self.one("full_attention", "sliding_attention") for _ in range(count)]


def write_family(folder: Path, family: str, seed: int, **changes: Any) -> Any:
    """Write a checkpoint of random weights; the model that transformers makes of it."""
    config = make_config(family, seed, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = make_tensors(folder, seed)
    assert tensors is not None, f"transformers makes no model of {config}"
    save_file(tensors, folder / "model.safetensors")
    return load_theirs(folder)


def make_config(family: str, seed: int, **changes: Any) -> dict[str, Any]:
    """A `config.json` as published ones are, of a tiny decoder; `changes` are in it as they are."""
    dice = Dice(f"{family}-{seed}")
    heads = dice.one(2, 4)
    config: dict[str, Any] = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": MODEL_TYPES.get(family, family.lower()),
        "vocab_size": 128,
        "hidden_size": dice.one(32, 48),
        "intermediate_size": dice.one(40, 64),
        "num_hidden_layers": dice.one(3, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": dice.one(1, 2, heads),
        "head_dim": dice.one(8, 16),
        "max_position_embeddings": dice.one(128, 256),
        "initializer_range": 0.25,
        "eos_token_id": 1,
        "bos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
    }
    config |= changes
    return config | OWN[family](dice, config) | changes


def _gemma2(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_act": "gelu_pytorch_tanh", "sliding_window": dice.one(7, 20),
        "query_pre_attn_scalar": dice.one(8, 24), "initializer_range": 0.15,
        **dice.some(
            attention_bias=True, final_logit_softcapping=dice.one(None, 4.0),
            attn_logit_softcapping=dice.one(None, 2.0, 5.0), rope_theta=500.0,
            hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=False,
            layer_types=dice.kinds(config["num_hidden_layers"]),
        ),
    }  # fmt: skip


def _gemma3(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    scaled = {"rope_type": "linear", "factor": 4.0}
    old = {"rope_theta": 800.0, "rope_local_base_freq": 50.0, "sliding_window_pattern": 2}
    new = {
        "full_attention": scaled | {"rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
    }
    ropes = dice.one(old, old | {"rope_scaling": scaled}, {"rope_parameters": new}, {})
    own = _gemma2(dice, config) | ropes
    own.pop("attn_logit_softcapping", None)
    return {key: value for key, value in own.items() if key != "rope_theta" or ropes}


def _phi3(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    share = dice.one(1.0, 0.5, 0.75)
    pairs = int(config["head_dim"] * share) // 2
    longrope = {
        dice.one("rope_type", "type"): "longrope",
        "short_factor": [1 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.7 * i for i in range(pairs)],
    }
    wide = {
        "hidden_size": config["head_dim"] * config["num_attention_heads"],
        "original_max_position_embeddings": dice.one(32, 128),
        "max_position_embeddings": 256, "partial_rotary_factor": share,
    }  # fmt: skip
    rope = dice.one({}, {"rope_scaling": longrope}, {"rope_scaling": longrope})
    return wide | rope | dice.some(sliding_window=dice.one(None, 9), rope_theta=300.0)


def _olmo2(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    return dice.some(attention_bias=True, rope_theta=400.0, tie_word_embeddings=True)


def _olmo3(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    own = {"sliding_window": dice.one(8, 30), "rope_theta": 500.0}
    kinds = dice.kinds(config["num_hidden_layers"])
    return own | _olmo2(dice, config) | dice.some(rope_scaling=yarn, layer_types=kinds)


def _smollm3(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    count = config["num_hidden_layers"]
    return dice.one(
        {"no_rope_layer_interval": 2},
        {"no_rope_layers": [dice.one(0, 1) for _ in range(count)]},
        {"use_sliding_window": True, "sliding_window": 11, "no_rope_layer_interval": 3},
    ) | dice.some(
        attention_bias=True, mlp_bias=True, rope_theta=700.0,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
    )  # fmt: skip


def _granite(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    return dice.some(
        embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.4,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_theta=600.0,
    ) | {"attention_multiplier": dice.one(0.1, 0.3)}  # fmt: skip


def _glm(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    return dice.some(attention_bias=False, partial_rotary_factor=dice.one(0.25, 1.0)) | {
        "rope_theta": dice.one(100.0, 10000.0)
    }


def _cohere2(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    hidden = config["head_dim"] * config["num_attention_heads"]
    kinds = dice.kinds(config["num_hidden_layers"])
    own = {"sliding_window": dice.one(6, 25), "hidden_size": hidden, "logit_scale": 0.5}
    return own | dice.some(
        attention_bias=True, layer_types=kinds, sliding_window_pattern=2, layer_norm_eps=1e-4,
        tie_word_embeddings=False, rope_theta=900.0,
    )  # fmt: skip


def _starcoder2(dice: Dice, config: dict[str, Any]) -> dict[str, Any]:
    return dice.some(
        use_bias=False, sliding_window=10, tie_word_embeddings=False, norm_epsilon=1e-4,
        rope_theta=1100.0,
    )  # fmt: skip


OWN = {
    "Gemma2": _gemma2, "Gemma3": _gemma3, "Phi3": _phi3, "Olmo2": _olmo2, "Olmo3": _olmo3,
    "SmolLM3": _smollm3, "Granite": _granite, "Glm": _glm, "Glm4": _glm, "Cohere2": _cohere2,
    "Starcoder2": _starcoder2,
}  # fmt: skip
"""What each family's files say beside the shape."""
FAMILIES = tuple(OWN)
