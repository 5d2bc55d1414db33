"""Faults that people found in what a run samples, by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from nanofw import LLM
from tests.runtime.checkpoints import write_qwen3

VOCAB, KNOWN = 40, 32
"""Ids of the model, and of its tokenizer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a preference for any token, whose tokenizer lacks the last ids."""
    made = tmp_path_factory.mktemp("padded")
    write_qwen3(made, vocab_size=VOCAB, eos_token_id=0, tie_word_embeddings=False)
    weights = load_file(made / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros_like(weights["lm_head.weight"])
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    words = {f"w{i}": i for i in range(KNOWN)}
    Tokenizer(models.WordLevel(words, unk_token="w1")).save(str(made / "tokenizer.json"))
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 39},
        {"temperature": 1.0, "top_p": 0.99},
        {"temperature": 0, "presence_penalty": 1.0},
        {"temperature": 1.0, "logit_bias": {36: 50}},
        {"temperature": 1.0, "logprobs": 2},
    ],
    ids=lambda fields: "-".join(fields),
)
@pytest.mark.parametrize(
    "run",
    [
        {},
        {"executor": {"name": "sim"}},
        pytest.param({"tensor_parallel_size": 2, "device": "cpu"}, id="ranks"),
    ],
    ids=["torch", "sim", "ranks"],
)
def test_F048_ids_that_the_tokenizer_does_not_have_are_never_sampled(
    folder: Path, run: dict[str, Any], fields: dict[str, Any]
) -> None:
    if run.get("executor") and ("presence_penalty" in fields or "logprobs" in fields):
        pytest.skip("the simulator samples by rule")
    if run.get("tensor_parallel_size") and len(fields) > 1 and "top_k" not in fields:
        pytest.skip("ranks are slow to start; split and gathered logits are each tried once")
    with LLM(folder, dtype="float32", max_model_len=128, **run) as llm:
        results = llm.generate(["w3"] * 8, max_tokens=60, ignore_eos=True, **fields)
    sampled = [token for result in results for token in result.outputs[0].token_ids]
    assert all(result.ok for result in results)
    assert len(sampled) == 480
    assert max(sampled) < KNOWN
    assert len(set(sampled)) > KNOWN // 2
