"""Greedy tokens of whole runs equal those of transformers, whatever the scheduling."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nanofw
from nanofw import LLM, SamplingParams
from tests.parity.checkpoints import FAMILIES, SHAPES, save_model, save_qwen3
from tests.parity.reference import compare, load_reference

DEMO = Path(nanofw.__file__).parent / "models" / "embedded" / "demo"
FACTORS: dict[str, tuple[Any, Any]] = {
    "batching": ("mixed", "prefill_first"),
    "kv_allocator": ("paged_prefix", "paged"),
    "room": ("ample", "scarce"),
    "chunk_tokens": (None, 16),
    "overlap": (False, True),
}
# Every pair of settings of any two factors occurs in one of these runs.
PAIRWISE = [
    (0, 0, 0, 0, 0),
    (0, 1, 1, 1, 0),
    (1, 0, 1, 1, 1),
    (1, 1, 0, 1, 1),
    (1, 1, 1, 0, 0),
    (0, 0, 1, 0, 1),
    (1, 0, 0, 1, 0),
    (0, 1, 0, 0, 1),
]


def settings(indices: tuple[int, ...]) -> dict[str, Any]:
    """The levels of a run by factor."""
    return {name: FACTORS[name][i] for name, i in zip(FACTORS, indices, strict=True)}


def test_pairwise_is_pairwise() -> None:
    for one, two in itertools.combinations(range(len(FACTORS)), 2):
        assert {(run[one], run[two]) for run in PAIRWISE} == set(itertools.product((0, 1), (0, 1)))


def make_prompts(count: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Prompts of mixed lengths; from the sixth on, each starts as the sixth before it."""
    generator = np.random.default_rng(7)
    prompts: list[list[int]] = []
    for i in range(count):
        prompt = generator.integers(1, vocab_size, int(generator.integers(1, longest))).tolist()
        if i >= 6:
            prompt = prompts[i - 6][: 3 * len(prompts[i - 6]) // 4 + 1] + prompt[:8]
        prompts.append(prompt)
    return prompts


def generate(
    model: Path, prompts: list[list[int]], max_tokens: int, levels: dict[str, Any]
) -> tuple[list[list[int]], dict[str, Any]]:
    """Tokens of a whole run, and the engine's counters."""
    longest = max(len(prompt) for prompt in prompts) + max_tokens
    ample = sum(-(-(len(prompt) + max_tokens) // 8) for prompt in prompts)
    scarce = 2 * -(-longest // 8)
    keys = ("batching", "chunk_tokens", "overlap")
    with LLM(
        str(model),
        dtype="float32",
        device="cpu",
        max_num_seqs=5,
        max_num_batched_tokens=96,
        kv_allocator={
            "name": levels["kv_allocator"],
            "block_size": 8,
            "num_blocks": ample if levels["room"] == "ample" else scarce,
        },
        attention_backend=levels.get("attention_backend", "sdpa"),
        **{key: levels[key] for key in keys},
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
        stats = dict(llm.engine.stats())
    return [list(result.outputs[0].token_ids) for result in results], stats


def check(model: Path, reference: Any, count: int, max_tokens: int, levels: dict[str, Any]) -> None:
    prompts = make_prompts(count, reference.config.vocab_size, 60)
    outputs, stats = generate(model, prompts, max_tokens, levels)
    assert all(len(output) == max_tokens for output in outputs)
    agreement = compare(reference, prompts, outputs)
    agreement.check()
    if levels["room"] == "scarce":
        assert stats["num_preemptions"] > 0
    if levels["kv_allocator"] == "paged_prefix" and levels["room"] == "ample":
        assert stats["num_cached_tokens"] > 0


@pytest.fixture(scope="module")
def reference() -> Any:
    return load_reference(DEMO)


@pytest.mark.parametrize("indices", PAIRWISE, ids=str)
def test_embedded_model(reference: Any, indices: tuple[int, ...]) -> None:
    check(DEMO, reference, 12, 24, settings(indices))


@pytest.mark.parametrize("shape", SHAPES)
def test_random_models(shape: str, tmp_path: Path) -> None:
    model = save_qwen3(tmp_path, shape, shard_size="20KB" if shape == "tied" else "1GB")
    reference = load_reference(model)
    index = list(SHAPES).index(shape)
    for indices in (PAIRWISE[index % len(PAIRWISE)], PAIRWISE[(index + 4) % len(PAIRWISE)]):
        # Random weights tie now and then, and a tie ends a comparison: many short outputs.
        check(model, reference, 20, 12, settings(indices))


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    family, changes = FAMILIES[name]
    model = save_model(tmp_path, family, **changes)
    index = list(FAMILIES).index(name)
    check(model, load_reference(model), 20, 12, settings(PAIRWISE[index % len(PAIRWISE)]))


@pytest.mark.slow
@pytest.mark.parametrize("indices", list(itertools.product((0, 1), repeat=len(FACTORS))), ids=str)
def test_full_product(reference: Any, indices: tuple[int, ...]) -> None:
    check(DEMO, reference, 64, 24, settings(indices))
