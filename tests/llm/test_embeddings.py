"""Embeddings and scores are those that transformers' hidden states and logits give."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from nanofw import LLM, AsyncLLM
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Pooling, Request, SamplingParams
from nanofw.engine.base import BaseEngine
from nanofw.errors import ModelError
from tests.models.family_folders import write_family

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "chunk_tokens": 19,
    "scheduler": "fcfs",
    "kv_allocator": {"name": "paged_prefix", "num_blocks": 12, "block_size": 16},
}
PROMPTS = [
    [(7 * i * i + 11 * j) % 120 + 3 for i in range(n)] for j, n in enumerate((1, 30, 64, 45))
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("granite")
    return folder, write_family(folder, "Granite", 1, max_position_embeddings=128)


@torch.inference_mode()
def states_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    return model.model(torch.tensor([token_ids]), use_cache=False).last_hidden_state[0]


def pooled_by_hand(states: torch.Tensor, pooling: str) -> np.ndarray:
    by_kind = {"last": states[-1], "cls": states[0], "mean": states.mean(dim=0)}
    return by_kind[pooling].numpy()


def vector_of(result: Any) -> Any:
    assert result.embedding is not None
    return result.embedding


def test_embeddings_are_hidden_states_of_transformers_however_prompts_are_cut(
    checkpoint: tuple[Path, Any],
) -> None:
    """In chunks, beside each other, from cached prefixes, in a pool that is too small for all."""
    folder, model = checkpoint
    states = [states_of(model, prompt) for prompt in PROMPTS]
    with LLM(folder, **SETTINGS) as llm:
        for pooling in (*get_args(Pooling), "last"):
            found = llm.embed(PROMPTS, pooling=pooling, normalize=False)
            for one, prompt, wanted in zip(found, PROMPTS, states, strict=True):
                assert one.error is None
                assert one.prompt_token_ids == tuple(prompt)
                expected = pooled_by_hand(wanted, pooling)
                np.testing.assert_allclose(vector_of(one), expected, rtol=1e-4, atol=1e-4)
        assert found[2].num_cached_tokens > 0
        assert llm.embed(PROMPTS, pooling="mean")[2].num_cached_tokens == 0


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_preempted_prompt_has_the_embedding_of_an_undisturbed_one(
    checkpoint: tuple[Path, Any], pooling: Pooling
) -> None:
    """The other request needs a second block when three chunks of four are computed."""
    folder, model = checkpoint
    pool = {"name": "paged_prefix", "num_blocks": 4, "block_size": 16}
    small = SETTINGS | {"max_model_len": 64, "chunk_tokens": 14, "kv_allocator": pool}
    small["scheduler"] = {"name": "fcfs", "watermark": 0}  # else no prompt starts in so full a pool
    prompt = np.array(PROMPTS[3], np.int32)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    embedded = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM(folder, **small) as llm:
        other = Request(id="other", prompt_token_ids=prompt[:14], sampling=greedy)
        asked = Request(id="asked", prompt_token_ids=prompt, sampling=embedded, pooling=pooling)
        disturbed = outputs_of(llm.engine, other, asked)["asked"]
        undisturbed = outputs_of(llm.engine, replace(asked, cache_salt="another"))["asked"]
    assert disturbed.num_preemptions > 0
    again = (disturbed.num_recomputed_tokens, disturbed.num_recovered_tokens)
    assert 0 < sum(again) < len(prompt)
    assert undisturbed.num_preemptions == undisturbed.num_cached_tokens == 0
    wanted = pooled_by_hand(states_of(model, PROMPTS[3]), pooling)
    np.testing.assert_allclose(vector_of(disturbed), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(vector_of(disturbed), vector_of(undisturbed), rtol=1e-5, atol=1e-5)


def outputs_of(engine: BaseEngine, *requests: Request) -> dict[str, RequestOutput]:
    """What the requests end in, by id."""
    for request in requests:
        engine.add_request(request)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs |= {output.id: output for output in engine.step().finished}
    return outputs


@pytest.mark.slow
def test_two_ranks_have_the_embeddings_of_transformers(tmp_path: Path) -> None:
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    model = write_family(tmp_path, "Granite", 1, **shape)
    with LLM(tmp_path, tensor_parallel_size=2, **SETTINGS) as llm:
        for pooling in get_args(Pooling):
            found = llm.embed(PROMPTS, pooling=pooling, normalize=False)
            for one, prompt in zip(found, PROMPTS, strict=True):
                expected = pooled_by_hand(states_of(model, prompt), pooling)
                np.testing.assert_allclose(vector_of(one), expected, rtol=1e-4, atol=1e-4)
        (score,) = llm.score([PROMPTS[1]], [[4, 9, 77]])
    wanted = score_by_hand(model, PROMPTS[1], [4, 9, 77])
    assert score.token_logprobs == pytest.approx(wanted.tolist(), abs=1e-3)


def test_pooling_is_what_the_checkpoint_says(checkpoint: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = checkpoint
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    write_modules(tmp_path, "pooling_mode_mean_tokens")
    wanted = pooled_by_hand(states_of(model, PROMPTS[1]), "mean")
    with LLM(tmp_path, **SETTINGS) as llm:
        (plain,) = llm.embed([PROMPTS[1]])
        (unit,) = llm.embed([PROMPTS[1]], normalize=True)
        refused, served = llm.embed([{"prompt_token_ids": [5], "temperature": 1.0}, [5]])
        write_modules(tmp_path, "pooling_mode_max_tokens")
        with pytest.raises(ModelError, match="pooling_mode_max_tokens is not supported"):
            llm.embed([PROMPTS[1]])
    np.testing.assert_allclose(vector_of(plain), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        vector_of(unit), wanted / np.linalg.norm(wanted), rtol=1e-4, atol=1e-4
    )
    assert "takes no sampling parameters" in str(refused.error)
    assert (refused.ok, served.ok) == (False, True)


def write_modules(folder: Path, mode: str) -> None:
    """The files of sentence-transformers, without a module that normalises."""
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


@torch.inference_mode()
def score_by_hand(model: Any, prompt: list[int], more: list[int]) -> torch.Tensor:
    logits = model(torch.tensor([[*prompt, *more]]), use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), dim=-1)
    return logprobs.gather(1, torch.tensor(more)[:, None])[:, 0]


def test_scores_are_log_probabilities_of_transformers(checkpoint: tuple[Path, Any]) -> None:
    folder, model = checkpoint
    pairs = [(PROMPTS[1], [4, 9, 77]), (PROMPTS[3], [8]), (PROMPTS[0], PROMPTS[2])]

    async def scored() -> list[Any]:
        async with AsyncLLM(folder, **SETTINGS) as llm:
            embedded = await llm.embed(PROMPTS[1], normalize=True)
            scores = [llm.score(prompt, more) for prompt, more in pairs]
            return [embedded, *await asyncio.gather(*scores)]

    with LLM(folder, **SETTINGS) as llm:
        found = llm.score([prompt for prompt, _ in pairs], [more for _, more in pairs])
        greedy = llm.generate([PROMPTS[1]], max_tokens=4, temperature=0)[0].outputs[0].token_ids
        (again,) = llm.score(PROMPTS[1], [greedy])
        empty, text = llm.score(PROMPTS[1], [[], "a text"])
    embedded, *others = asyncio.run(scored())
    assert np.linalg.norm(embedded.embedding) == pytest.approx(1.0, abs=1e-5)
    for (prompt, more), one, other in zip(pairs, found, others, strict=True):
        wanted = score_by_hand(model, prompt, more)
        assert one.token_logprobs == pytest.approx(wanted.tolist(), abs=1e-3)
        assert one.logprob == pytest.approx(float(wanted.sum()), abs=1e-2)
        assert one.token_ids == tuple(more)
        assert other.token_logprobs == pytest.approx(one.token_logprobs, abs=1e-5)
    assert again.is_greedy
    assert not found[0].is_greedy
    assert (empty.ok, text.ok) == (False, False)
    assert "as token ids, too" in str(text.error)


def test_a_text_is_scored_as_the_rest_of_the_whole() -> None:
    with LLM("embedded:demo", device="cpu") as llm:
        whole = llm.generate("the cat sat", max_tokens=1, prompt_logprobs=0)[0]
        (found,) = llm.score("the cat", [" sat"])
        assert llm.tokenizer is not None
        assert llm.tokenizer.decode(list(found.token_ids)).strip() == "sat"
    assert whole.prompt_logprobs is not None
    tail = whole.prompt_logprobs[-len(found.token_ids) :]
    pairs = zip(found.token_ids, tail, strict=True)
    assert found.logprob == pytest.approx(sum(at[i].logprob for i, at in pairs if at), abs=1e-5)


def test_a_simulated_machine_has_no_embeddings() -> None:
    with LLM.from_config("sim") as llm:
        (found,) = llm.embed(["a"], pooling="last", normalize=True)
    assert "computes no hidden states" in str(found.error)
