"""Decoders of many families through `model.name: transformers`: its logits, by paged attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.assembly import assemble, select
from nanofw.checkpoints.files import read_json
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ModelError
from nanofw.models.any_decoder.reader import read
from tests.checkpoints.both import load_theirs
from tests.models.forced import check_forced
from tests.runtime.driver import MODELS

SHAPE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128, "initializer_range": 0.2, "eos_token_id": 1,
    "bos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "n_shared_experts": 1,
    "decoder_sparse_step": 1, "sliding_window": 16, "n_inner": 48, "rotary_dim": 8,
    "query_pre_attn_scalar": 8, "ffn_dim": 48, "word_embed_proj_dim": 32, "moe_num_experts": 4,
    "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "moe_layer_start_index": 0,
}  # fmt: skip
"""Keys that a family's configuration class does not have are left out."""
QUICK = ("mixtral", "qwen3_moe", "gpt_neox", "gpt2", "gemma2", "phi", "cohere")
OTHERS = (
    "llama", "qwen2_moe", "gemma", "gemma3_text", "phi3", "olmo", "olmo2", "olmoe", "granite",
    "granitemoe", "glm", "glm4", "cohere2", "starcoder2", "smollm3", "gptj", "gpt_bigcode",
    "afmoe", "apertus", "arcee", "bitnet", "opt", "mistral", "qwen3", "olmo3", "exaone4",
    "ernie4_5", "ernie4_5_moe", "seed_oss", "nemotron", "helium", "glm4_moe", "dots1",
    "hunyuan_v1_dense", "minimax_m2", "ministral", "flex_olmo", "persimmon", "codegen",
    "nanochat", "vaultgemma",
)  # fmt: skip
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "num_key_value_heads": 4, "head_dim": 4,
}  # fmt: skip
"""Of latent attention: values are narrower than keys."""


def write(folder: Path, model_type: str, **changes: Any) -> Any:
    """A checkpoint of random weights; the model that transformers makes of it."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = CONFIG_MAPPING[model_type]
    usual = known()
    stated = {key: value for key, value in SHAPE.items() if hasattr(usual, key)}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(known(**(stated | changes))).float()
    for name, parameter in model.named_parameters():  # biases and norms start out as constants
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return load_theirs(folder)


@pytest.mark.parametrize(
    "model_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_logits_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    model = write(tmp_path, model_type)
    spec = read(read_json(tmp_path / "config.json"), tmp_path)
    check_forced(tmp_path, model, spec=spec, components={"model": MODELS["transformers"]})


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("deepseek_v3", {}),
        pytest.param("deepseek_v2", {"q_lora_rank": None}, marks=pytest.mark.slow),
        pytest.param("minicpm3", {}, marks=pytest.mark.slow),
        pytest.param("glm4_moe_lite", {"v_head_dim": 8}, marks=pytest.mark.slow),
    ],
)
def test_latent_attention_is_that_of_transformers(
    model_type: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = write(tmp_path, model_type, **(LATENT | changes))
    spec = read(read_json(tmp_path / "config.json"), tmp_path)
    assert spec.head_dim == 12
    check_forced(tmp_path, model, spec=spec, components={"model": MODELS["transformers"]})


def words(folder: Path, *more: str) -> Any:
    return load_config(
        "qwen3-demo",
        [f"model.path={folder}", "model.name=transformers", "engine.device=cpu",
         "engine.max_num_batched_tokens=16", "kv_allocator.block_size=4",
         "kv_allocator.num_blocks=40", *more],
    )  # fmt: skip


def test_a_whole_engine_serves_it_with_prefixes_and_preemption(tmp_path: Path) -> None:
    model = write(tmp_path, "mixtral")
    prompt = [(7 * i + 3) % 100 + 2 for i in range(30)]
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with assemble(words(tmp_path, "kv_allocator.num_blocks=20")) as engine:
        for i in range(4):
            engine.add_request(
                Request(id=str(i), prompt_token_ids=[*prompt, 2 + i], sampling=sampling)
            )
        done: dict[str, Any] = {}
        while engine.has_unfinished:
            done |= {output.id: output for output in engine.step().finished}
    assert sum(output.num_preemptions for output in done.values()) > 0
    for i in range(4):
        tokens = torch.tensor([[*prompt, 2 + i]])
        wanted = model.generate(tokens, do_sample=False, max_new_tokens=16, min_new_tokens=16)
        assert done[str(i)].token_ids.tolist() == wanted[0, 31:].tolist()


def test_sizes_of_experts_come_from_the_files(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    facts = select(words(tmp_path)).explanation.facts
    assert facts["num_active_parameters"] < facts["num_matrix_parameters"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "num_attention_heads should be a positive integer"),
        ({"model_type": "t5"}, "transformers has no decoder of model_type 't5'"),
        ({"model_type": "unheard_of"}, "transformers .* cannot read it"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"model_type": "gemma3", "text_config": {}}, "a part of a model of several parts"),
        ({"model_type": "bloom"}, "max_position_embeddings should be a number"),
    ],
)
def test_what_does_not_fit_is_refused_before_weights(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    text = json.dumps({"architectures": ["SomeForCausalLM"], **config})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        select(words(tmp_path))


def test_an_attention_of_its_own_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    write(tmp_path, "stablelm")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="StableLmForCausalLM has an attention of its own"):
        assemble(words(tmp_path, "engine.max_model_len=64"))


def test_a_layer_whose_window_is_not_the_stated_one_is_refused(tmp_path: Path) -> None:
    """`config.json` is read by nanofw and by the family; where they disagree, nothing runs."""
    from dataclasses import replace

    from tests.runtime.driver import make_executor

    write(tmp_path, "mixtral")
    spec = read(read_json(tmp_path / "config.json"), tmp_path)
    with pytest.raises(ModelError, match="has a window of 16, where config.json says None"):
        make_executor(
            tmp_path, spec=replace(spec, sliding_windows=()),
            components={"model": MODELS["transformers"]},
        )  # fmt: skip
