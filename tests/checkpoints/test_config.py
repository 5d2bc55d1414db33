from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from nanofw.checkpoints.config import read_checkpoint
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 7,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "sliding_window": 16,
}

LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """`read(head_dim=None)`: the spec of the configuration with some keys changed or removed."""

    def spec(generation: dict[str, Any] | None = None, /, **changes: Any) -> ModelSpec:
        config = {**QWEN3, **changes}
        config = {key: value for key, value in config.items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if generation is not None:
            text = json.dumps(generation)
            (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
        return read_checkpoint(tmp_path)

    return spec


def test_old_and_new_spellings_say_the_same(read: Any) -> None:
    old = read()
    new = read(
        rope_theta=...,
        rope_scaling=...,
        torch_dtype=...,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        dtype="bfloat16",
    )
    assert old.rope == new.rope == {"rope_type": "default", "rope_theta": 1e6}
    assert old.dtype == new.dtype == "bfloat16"
    assert (old.norm_eps, old.tie_word_embeddings, old.eos_token_ids) == (1e-5, True, (7,))
    assert read(torch_dtype="torch.float16").dtype == "float16"
    assert read(torch_dtype=None).dtype == "float32"


def test_B060_a_given_head_dim_counts(read: Any) -> None:
    spec = read()
    assert spec.head_dim == 32  # and not 64 / 4
    assert spec.kv_bytes_per_token == 2 * 4 * 2 * 32 * 2
    assert read(head_dim=...).head_dim == 128  # Qwen3's own, and not 64 / 4
    assert read(**LLAMA, head_dim=...).head_dim == 16
    with pytest.raises(ModelError, match="no head_dim, and hidden_size 66"):
        read(**LLAMA, head_dim=..., hidden_size=66)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_B062_a_default_rope_is_none_and_theta_is_found_wherever_it_is(
    read: Any, place: str, key: str
) -> None:
    spec = read(rope_theta=..., **{place: {key: "default", "rope_theta": 5e5}})
    assert spec.rope == {"rope_type": "default", "rope_theta": 5e5}
    spec = read(rope_theta=3e4, **{place: {key: "linear", "factor": 2.0}})
    assert spec.rope == {"rope_type": "linear", "rope_theta": 3e4, "factor": 2.0}
    assert read(rope_theta=...).rope["rope_theta"] == 10000.0


def test_B062_yarn_is_read_and_an_unknown_type_refused_by_name(read: Any) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    spec = read(rope_scaling=yarn)
    assert spec.rope["rope_type"] == "yarn"
    assert spec.max_model_len == 2048
    with pytest.raises(ModelError, match="'spiral' is not supported; supported: default, linear"):
        read(rope_scaling={"rope_type": "spiral"})
    with pytest.raises(ModelError, match="rope type yarn lacks factor"):
        read(rope_scaling={"rope_type": "yarn"})
    with pytest.raises(ModelError, match="per layer type"):
        read(rope_parameters={"full_attention": {"rope_type": "default"}})
    with pytest.raises(ModelError, match="should be an object"):
        read(rope_scaling="yarn")


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 2048),
        ({"rope_type": "dynamic", "factor": 3.0}, 3072),
        ({"rope_type": "yarn", "factor": 1.0}, 1024),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            1024,
        ),
    ],
)
def test_the_reach_of_a_scaled_rope(read: Any, rope: dict[str, Any], length: int) -> None:
    assert read(rope_scaling=rope).max_model_len == length


def test_the_trained_length_is_found_wherever_it_is(read: Any) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}
    key = "original_max_position_embeddings"
    assert read(rope_scaling={**llama3, key: 128}).trained_len == 128
    assert read(rope_scaling={**llama3, key: 128}, **{key: 256}).trained_len == 256
    assert read(rope_scaling=llama3).trained_len == 1024
    dynamic = read(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (dynamic.trained_len, dynamic.default_model_len, dynamic.max_model_len) == (
        1024,
        1024,
        2048,
    )
    assert read(rope_scaling={"type": "linear", "factor": 2.0}).default_model_len == 2048


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "yarn", "factor": "4"}, "rope parameter factor should be positive"),
        ({"rope_type": "linear", "factor": 0.0}, "rope parameter factor should be positive"),
        ({"rope_type": "longrope", "factor": 4.0}, "rope type 'longrope' is not supported"),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
            },
            "low_freq_factor < high_freq_factor",
        ),
    ],
)
def test_ropes_that_cannot_be_computed_are_refused(
    read: Any, rope: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read(rope_scaling=rope)


def test_what_surrounds_a_plain_decoder_is_refused(read: Any) -> None:
    with pytest.raises(ModelError, match="Qwen2VLForConditionalGeneration keeps its decoder in"):
        read(
            architectures=["Qwen2VLForConditionalGeneration"],
            text_config={"vocab_size": 100},
            vocab_size=...,
        )


def test_activation_and_partial_rotation_are_read(read: Any) -> None:
    assert read().activation == read(hidden_act="swish").activation == "silu"
    assert read(hidden_act="gelu").activation == "gelu"
    assert not read().rotates_partly
    assert not read(partial_rotary_factor=1.0).rotates_partly
    assert read(partial_rotary_factor=0.5).rotates_partly


def test_B064_quantized_weights_are_refused_by_name(read: Any) -> None:
    with pytest.raises(ModelError, match="quantization awq is not supported; supported: weights"):
        read(quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ModelError, match="weights in float8_e4m3fn are not supported"):
        read(torch_dtype="float8_e4m3fn")


def test_several_end_tokens_from_both_files(read: Any) -> None:
    assert read(eos_token_id=[7, 9]).eos_token_ids == (7, 9)
    assert read(eos_token_id=None).eos_token_ids == ()
    assert read({"eos_token_id": [8, 7]}).eos_token_ids == (8, 7)
    assert read({"eos_token_id": 500}).eos_token_ids == (7,)  # outside the vocabulary


def test_a_window_that_is_not_in_use_is_no_window(read: Any) -> None:
    assert read().sliding_windows == ()
    assert read(use_sliding_window=...).sliding_windows == ()  # Qwen's default
    assert read(use_sliding_window=True, sliding_window=None).sliding_windows == ()


def test_windows_per_layer(read: Any) -> None:
    assert read(use_sliding_window=True, max_window_layers=3).sliding_windows == (
        None,
        None,
        None,
        16,
    )
    kinds = ["full_attention", "sliding_attention"] * 2
    spec = read(use_sliding_window=True, layer_types=kinds)
    assert spec.sliding_windows == (None, 16, None, 16)
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    spec = read(use_sliding_window=..., sliding_window=8, **mistral)
    assert spec.sliding_windows == (8, 8, 8, 8)
    assert read(use_sliding_window=True).sliding_windows == ()  # Qwen's default: from layer 28 on
    spec = read(use_sliding_window=True, num_hidden_layers=30)
    assert spec.sliding_windows == (None,) * 28 + (16, 16)
    with pytest.raises(ModelError, match="layers of type linear_attention"):
        read(layer_types=["linear_attention"] * 4)
    with pytest.raises(ModelError, match="should name 4 layers, not 3"):
        read(layer_types=["full_attention"] * 3)
    with pytest.raises(ModelError, match="sliding_window should be a number of tokens, not 0"):
        read(use_sliding_window=True, sliding_window=0)


def test_what_is_missing_is_listed(read: Any, tmp_path: Path) -> None:
    unknown = {"architectures": ["OtherForCausalLM"], "model_type": "other"}
    with pytest.raises(ModelError, match="lacks vocab_size, num_hidden_layers"):
        read(vocab_size=..., num_hidden_layers=None, **unknown)
    with pytest.raises(ModelError, match="lacks num_hidden_layers"):
        read(vocab_size=..., num_hidden_layers=None)  # Qwen3 has a vocabulary of its own
    with pytest.raises(ModelError, match="which architecture"):
        read(architectures=[])
    with pytest.raises(ModelError, match="4 attention heads cannot share 3 KV heads"):
        read(num_key_value_heads=3)
    assert read(num_key_value_heads=..., **LLAMA).num_kv_heads == 4
    with pytest.raises(ModelError, match="share 32 KV heads .*, the default of Qwen3ForCausalLM"):
        read(num_key_value_heads=...)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be read"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelError, match="JSON object"):
        read_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="is not a checkpoint: it has no config.json"):
        read_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size should be a positive integer, not 0"),
        ({"num_attention_heads": -4}, "num_attention_heads should be a positive integer, not -4"),
        ({"max_position_embeddings": 0}, "max_position_embeddings should be a positive integer"),
        ({"vocab_size": True}, "vocab_size should be a positive integer, not True"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads should be a positive integer, not '2'"),
        ({"num_key_value_heads": -2}, "num_key_value_heads should be a positive integer, not -2"),
        ({"head_dim": "x"}, "head_dim should be a positive integer, not 'x'"),
        ({"head_dim": [32]}, "head_dim should be a positive integer"),
        ({"head_dim": 0}, "head_dim should be a positive integer, not 0"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps should be a number, 0 or greater, not -1e-06"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps should be a number"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps should be a number"),
        ({"rope_theta": 0}, "rope_theta should be positive, not 0"),
        ({"rope_parameters": [1]}, "rope parameters should be an object"),
        ({"rope_scaling": {"type": ["yarn"], "factor": 2}}, "rope type ['yarn'] is not supported"),
        ({"rope_scaling": {"rope_type": {"a": 1}, "b": 1}}, "rope type {'a': 1} is not supported"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings should be true or false"),
        ({"attention_bias": 1}, "attention_bias should be true or false, not 1"),
    ],
)
def test_numbers_that_describe_no_model_are_refused(
    read: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        read(**changes)


def test_what_is_null_is_as_if_it_were_not_there(read: Any) -> None:
    assert read(rms_norm_eps=None).norm_eps == read(rms_norm_eps=...).norm_eps == 1e-6
    assert read(head_dim=None).head_dim == read(head_dim=...).head_dim == 128
    assert read(**LLAMA, head_dim=None).head_dim == read(**LLAMA, head_dim=...).head_dim == 16
    assert read(num_key_value_heads=None).num_kv_heads == 4
    assert read(rope_theta=None).rope["rope_theta"] == 10000.0


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "yarn", "factor": 1e9}, "factor 1000000000.0 makes 1.02e+12 positions"),
        ({"rope_type": "linear", "factor": 1e300}, "2,147,483,647 at most are supported"),
        ({"rope_type": "dynamic", "factor": 10**400}, "factor"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor should be at least 1, not 0.5"),
        ({"rope_type": "linear", "factor": 1e-9}, "factor should be at least 1"),
        ({"rope_type": "yarn", "factor": -4.0}, "factor should be positive, not -4.0"),
        ({"rope_type": "yarn", "factor": math.nan}, "factor should be positive, not nan"),
        ({"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 32}, "beta_slow <= beta"),
        ({"rope_type": "yarn", "factor": 2, "beta_slow": 64}, "needs beta_slow <= beta_fast"),
        (
            {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0},
            "original_max_position_embeddings should be positive, not 0",
        ),
        ({"rope_type": "default", "rope_theta": 1}, "rope_theta should be above 1, not 1"),
        ({"rope_type": "yarn", "factor": 2, "rope_theta": 0.5}, "rope_theta should be above 1"),
    ],
)
def test_absurd_numbers_of_a_rope_are_refused(
    read: Any, rope: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        read(rope_scaling=rope)


def test_more_positions_than_can_be_counted_are_refused(read: Any) -> None:
    with pytest.raises(ModelError, match="max_position_embeddings makes 1e[+]12 positions"):
        read(max_position_embeddings=10**12)
