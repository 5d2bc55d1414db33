"""The angles of every rope type are those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.models.layers import ROPE_TYPES, RotaryEmbedding

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 1024},
    "yarn": YARN,
    "yarn_qwen": {**YARN, "original_max_position_embeddings": 32768, "rope_theta": 1e6},
    "yarn_untruncated": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn_mscale": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn_attention_factor": {**YARN, "attention_factor": 0.8},
    "yarn_one": {**YARN, "factor": 1.0},
    "llama3": LLAMA3,
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "short_factor": 1.0,
        "long_factor": 2.0,
    },
    "longrope_short": {
        "rope_type": "longrope",
        "attention_factor": 1.1,
        "short_factor": 1.5,
        "long_factor": 9.0,
        "factor": 2.0,
        "original_max_position_embeddings": 2048,
    },
    "llama3_small": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 128},
}


def make_spec(rope: dict[str, Any], head_dim: int = 64) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM", path="somewhere", dtype="float32", vocab_size=64,
        hidden_size=4 * head_dim, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=head_dim, max_model_len=2048, rope=rope,
    )  # fmt: skip


def with_factors(rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The rope with a factor for each pair of elements, where it has one that grows."""
    listed = ("short_factor", "long_factor")
    factors = {
        key: [rope[key] + i / 7 for i in range(head_dim // 2)] for key in listed if key in rope
    }
    return rope | factors


def theirs(rope: dict[str, Any], head_dim: int, length: int) -> torch.Tensor:
    """Cosines, then sines of [length, head_dim / 2] in transformers."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_theta": 10000.0, **rope}
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=parameters.get("original_max_position_embeddings", 2048),
        rope_parameters=parameters,
    )
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.arange(length)[None])
    half = head_dim // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("case", CASES)
def test_angles_are_those_of_transformers(case: str, head_dim: int) -> None:
    rope = with_factors(CASES[case], head_dim)
    ours = RotaryEmbedding(make_spec(rope, head_dim), 2048, CPU)
    # An angle of 2048 radians has a float32 error of 1e-4.
    torch.testing.assert_close(ours.cos_sin, theirs(rope, head_dim, 2048), rtol=0, atol=2e-4)


def test_every_rope_type_is_compared() -> None:
    assert {case["rope_type"] for case in CASES.values()} == set(ROPE_TYPES)


def test_a_dynamic_rope_changes_nothing_up_to_the_trained_length() -> None:
    plain = RotaryEmbedding(make_spec({"rope_type": "default"}), 1024, CPU)
    for length in (100, 1024):
        short = RotaryEmbedding(make_spec(CASES["dynamic"]), length, CPU)
        assert torch.equal(short.cos_sin, plain.cos_sin[:length])
    longer = RotaryEmbedding(make_spec(CASES["dynamic"]), 1025, CPU)
    assert not torch.equal(longer.cos_sin[:1024], plain.cos_sin)


def test_partial_rotation_is_refused() -> None:
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5}
    with pytest.raises(ModelError, match=r"partial_rotary_factor 0\.5 is not supported"):
        RotaryEmbedding(make_spec(rope), 64, CPU)


def test_angles_beyond_memory_say_what_to_lower() -> None:
    with pytest.raises(ModelError, match=r"do not fit in memory .*lower engine\.max_model_len"):
        RotaryEmbedding(make_spec({"rope_type": "default"}), 1 << 50, CPU)
