"""What the newer families read from a `config.json`, and what they refuse before weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import select
from nanofw.checkpoints.config import read_checkpoint
from nanofw.config.load import load_config
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import CapabilityError, ModelError
from tests.checkpoints.both import check_equal
from tests.models.family_folders import FAMILIES, make_config, write_family


def spec_of(folder: Path, family: str, **changes: Any) -> ModelSpec:
    config = make_config(family, 0) | changes
    config = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_checkpoint(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_the_architecture_alone_is_read_with_the_familys_defaults(
    family: str, tmp_path: Path
) -> None:
    """As transformers' configuration class has them."""
    import transformers

    model_type = make_config(family, 0)["model_type"]
    config = {"architectures": [f"{family}ForCausalLM"], "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ours = read_checkpoint(tmp_path)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    stated = theirs.eos_token_id
    eos = stated if isinstance(stated, list) else [stated]
    assert ours.eos_token_ids == tuple(item for item in eos if item < theirs.vocab_size)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    for key in ("vocab_size", "hidden_size", "intermediate_size", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key
    kinds = getattr(theirs, "layer_types", None) or ()
    wanted = [kind == "sliding_attention" for kind in kinds]
    assert [window is not None for window in ours.sliding_windows] == (
        wanted if any(wanted) else []
    )


def test_phi_serves_its_trained_length_unless_asked_for_more(tmp_path: Path) -> None:
    factors = [1.0] * 8
    rope = {"type": "longrope", "short_factor": factors, "long_factor": factors}
    spec = spec_of(
        tmp_path, "Phi3", rope_scaling=rope, head_dim=16, partial_rotary_factor=1.0,
        max_position_embeddings=131072, original_max_position_embeddings=4096,
    )  # fmt: skip
    assert (spec.default_model_len, spec.max_model_len) == (4096, 131072)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Gemma3", {"use_bidirectional_attention": True}, "tokens that see later ones"),
        ("Gemma2", {"sliding_window": None}, "sliding_window should be a number of tokens"),
        ("Gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping should be a number"),
        ("Phi3", {"partial_rotary_factor": 0.1}, "partial_rotary_factor should leave an even"),
        (
            "Phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor should be . positive numbers",
        ),
        ("Phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not"),
        ("SmolLM3", {"no_rope_layers": [1]}, "no_rope_layers should be a list of"),
        ("Granite", {"residual_multiplier": "a"}, "residual_multiplier should be a number"),
        ("Olmo3", {"rope_parameters": {"full_attention": 3}}, "full_attention: rope parameters"),
    ],
)
def test_what_describes_no_decoder_is_refused_by_key(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, family, **changes)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Gemma2", {"sliding_window_pattern": 3, "layer_types": None}),
        ("Olmo3", {"sliding_window_pattern": 2, "layer_types": None}),
        ("Olmo3", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("Gemma3", {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": None}),
        (
            "SmolLM3",
            {
                "layer_types": ["sliding_attention"] * 3,
                "num_hidden_layers": 3,
                "sliding_window": 5,
                "use_sliding_window": False,
            },
        ),
    ],
)
def test_keys_that_transformers_takes_otherwise_than_their_names_say(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """A pattern that a family ignores, an old spelling that counts for nothing, and a switch that
    the layers' own types overrule."""
    write_family(tmp_path, family, 0, **changes)
    check_equal(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Gemma2", {"hidden_activation": "gelu"}, "activation gelu is needed"),
        ("Olmo2", {"num_attention_heads": 2, "num_key_value_heads": 2}, "claim tensor_parallel"),
        ("Mixtral", {}, r"'MixtralForCausalLM' is not supported.*model\.name=transformers"),
    ],
)
def test_what_no_component_can_do_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ranks = 2 if family == "Olmo2" else 1
    base = "Llama" if family == "Mixtral" else family
    config = make_config("Granite" if base == "Llama" else base, 0) | changes
    if base == "Llama":
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = [f"model.path={tmp_path}", f"engine.tensor_parallel_size={ranks}", "engine.device=cpu"]
    with pytest.raises((CapabilityError, ModelError), match=message):
        select(load_config("qwen3-demo", words))
