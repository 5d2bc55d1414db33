"""Several ranks draw the tokens of one, however the work is cut. gloo, float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nanofw
from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.parallel.executor import ParallelExecutor
from tests.parity.reference import compare, load_reference
from tests.parity.test_greedy import PAIRWISE, make_prompts, settings
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import component
from tests.runtime.parallel.ranks import (
    MAX_LEN,
    Lent,
    engine_over,
    executor_of,
    is_running,
    run,
    tokens_of,
)

DEMO = Path(nanofw.__file__).parent / "models" / "embedded" / "demo"
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    # ranks, changes; the vocabulary of 211 is odd
    "biases_8_to_2_heads_4_ranks": (
        4,
        {
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 211,
            "attention_bias": True,
        },
    ),
    "tied_4_to_1_heads_4_ranks": (
        4, {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 211},
    ),
    "untied_2_ranks": (2, {"vocab_size": 211}),
    "tied_window_2_ranks": (
        2,
        {
            "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
}  # fmt: skip
GREEDY = {"temperature": 0, "ignore_eos": True}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.8, "top_k": 7, "seed": 3},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.3, "seed": 1},
    {"temperature": 0, "frequency_penalty": 0.9, "logprobs": 2},
    {"temperature": 1.0, "n": 2, "prompt_logprobs": 1},
)


def greedy(count: int, max_tokens: int) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=max_tokens, **GREEDY)] * count


def mixed(count: int, max_tokens: int) -> list[SamplingParams]:
    """Every kind of draw, in turn."""
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    return [SamplingParams(max_tokens=max_tokens, ignore_eos=True, **kind) for kind in kinds]


def limits_of(levels: dict[str, Any]) -> dict[str, Any]:
    """The settings of a pairwise case, for `engine_over`."""
    return {
        "prefill_first": levels["batching"] == "prefill_first",
        "allocator": levels["kv_allocator"],
        "num_blocks": 128 if levels["room"] == "ample" else 12,
        "chunk_tokens": levels["chunk_tokens"],
        "overlap": levels["overlap"],
    }


@pytest.fixture(scope="module")
def two() -> Iterator[Lent]:
    """The embedded model over two ranks, for all cases of this file."""
    executor = executor_of(DEMO, 2)
    assert isinstance(executor, ParallelExecutor)
    yield Lent(executor)
    executor.close()
    assert not any(is_running(pid) for pid in executor.facts().process_ids)


@pytest.fixture(scope="module")
def one() -> Iterator[Lent]:
    executor = executor_of(DEMO, 1)
    yield Lent(executor)
    executor.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return make_prompts(8, 4096, 50)


@pytest.fixture(scope="module")
def expected(one: Lent, prompts: list[list[int]]) -> dict[str, list[int]]:
    """What one rank draws."""
    return tokens_of(run(engine_over(one.lend(), DEMO), prompts, mixed(len(prompts), 12)))


@pytest.mark.parametrize("indices", PAIRWISE, ids=str)
def test_every_kind_of_draw_equals_that_of_one_rank(
    two: Lent, prompts: list[list[int]], expected: dict[str, list[int]], indices: tuple[int, ...]
) -> None:
    levels = settings(indices)
    engine = engine_over(two.lend(), DEMO, **limits_of(levels))
    assert tokens_of(run(engine, prompts, mixed(len(prompts), 12))) == expected
    if levels["room"] == "scarce":
        assert engine.stats()["num_preemptions"] > 0
    elif levels["kv_allocator"] == "paged_prefix":
        assert engine.stats()["num_cached_tokens"] > 0


def test_greedy_tokens_equal_the_references(two: Lent, prompts: list[list[int]]) -> None:
    outputs = run(engine_over(two.lend(), DEMO), prompts, greedy(len(prompts), 12))
    ours = [outputs[f"r{i}.0"].token_ids.tolist() for i in range(len(prompts))]
    compare(load_reference(DEMO), prompts, ours).check()


def test_log_probabilities_equal_those_of_one_rank(
    one: Lent, two: Lent, prompts: list[list[int]]
) -> None:
    sampling = [SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2)] * 3
    found = [run(engine_over(e.lend(), DEMO), prompts[:3], sampling) for e in (one, two)]
    for key, alone in found[0].items():
        for name in ("logprobs", "prompt_logprobs"):
            left, right = getattr(alone, name), getattr(found[1][key], name)
            np.testing.assert_allclose(left.token_logprobs, right.token_logprobs, atol=1e-4)
            assert (left.ranks == right.ranks).mean() > 0.95


def test_B011_a_preempted_request_is_sent_whole(two: Lent, one: Lent) -> None:
    prompts = make_prompts(8, 4096, 30)
    scarce = engine_over(two.lend(), DEMO, num_blocks=MAX_LEN // 8 + 2)
    outputs = tokens_of(run(scarce, prompts, greedy(8, 20)))
    assert scarce.stats()["num_preemptions"] > 0
    assert outputs == tokens_of(run(engine_over(one.lend(), DEMO), prompts, greedy(8, 20)))


def test_B054_ranks_draw_the_same_without_a_seed(two: Lent, one: Lent) -> None:
    """Every step compares what the ranks drew; here they draw what one rank draws, too."""
    prompts = make_prompts(5, 4096, 20)
    sampling = [SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)] * 5
    outputs = [tokens_of(run(engine_over(e.lend(), DEMO), prompts, sampling)) for e in (two, one)]
    assert outputs[0] == outputs[1]
    assert len({tuple(tokens) for tokens in outputs[0].values()}) == 5


def test_aborted_requests_leave_the_others_alone(
    two: Lent, prompts: list[list[int]], expected: dict[str, list[int]]
) -> None:
    from nanofw.contracts.requests import Request

    engine = engine_over(two.lend(), DEMO, overlap=True)
    sampling = mixed(len(prompts), 12)
    for i, prompt in enumerate(prompts):
        engine.add_request(Request(id=f"r{i}", prompt_token_ids=prompt, sampling=sampling[i]))
    outputs = {}
    steps = 0
    while engine.has_unfinished:
        steps += 1
        if steps in (3, 9):
            assert engine.abort_request(f"r{steps // 3}")
        outputs |= {f"{o.id}.{o.sample_index}": o for o in engine.step().finished}
    finished = {k: o.token_ids.tolist() for k, o in outputs.items() if o.finish_reason != "abort"}
    assert len(finished) >= len(expected) - 4
    assert finished == {key: expected[key] for key in finished}


def check_model(folder: Path, name: str, cases: list[tuple[int, ...]]) -> None:
    """A random model over its ranks against the reference, and against one rank."""
    size, changes = MODELS[name]
    reference: Any = write_qwen3(folder, **changes)
    prompts = make_prompts(12, reference.config.vocab_size, 40)
    executor, single = executor_of(folder, size), executor_of(folder, 1)
    try:
        several, alone = Lent(executor), Lent(single)
        expected = tokens_of(run(engine_over(alone.lend(), folder), prompts, mixed(12, 10)))
        for indices in cases:
            limits = limits_of(settings(indices))
            engine = engine_over(several.lend(), folder, **limits)
            outputs = run(engine, prompts, greedy(12, 10))
            ours = [outputs[f"r{i}.0"].token_ids.tolist() for i in range(12)]
            compare(reference, prompts, ours).check()
            engine = engine_over(several.lend(), folder, **limits)
            assert tokens_of(run(engine, prompts, mixed(12, 10))) == expected
    finally:
        executor.close()
        single.close()


def test_B071_more_ranks_than_kv_heads_hold_them_several_times(tmp_path: Path) -> None:
    """Four ranks, two KV heads; projections with biases (B070) and a vocabulary of 211."""
    check_model(tmp_path, "biases_8_to_2_heads_4_ranks", PAIRWISE[3:4])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_random_models(name: str, tmp_path: Path) -> None:
    check_model(tmp_path, name, PAIRWISE)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16, 512])
def test_block_sizes_reach_every_rank(block_size: int, one: Lent) -> None:
    prompts = make_prompts(4, 4096, 50)
    executor = executor_of(DEMO, 2, block_size=block_size, num_blocks=1024 // block_size + 8)
    try:
        engine = engine_over(executor, DEMO, num_blocks=1024 // block_size + 8)
        outputs = tokens_of(run(engine, prompts, greedy(4, 12)))
    finally:
        executor.close()
    assert outputs == tokens_of(run(engine_over(one.lend(), DEMO), prompts, greedy(4, 12)))


@pytest.mark.slow
def test_triton_in_its_interpreter(monkeypatch: pytest.MonkeyPatch, one: Lent) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend = component(
        "attention_backend", "triton", "nanofw.attention_backends.triton:TritonAttention"
    )
    prompts = make_prompts(3, 4096, 12)
    executor = executor_of(
        DEMO, 2, block_size=64, num_blocks=16, components={"attention_backend": backend}
    )
    try:
        engine = engine_over(executor, DEMO, num_blocks=16)
        outputs = tokens_of(run(engine, prompts, greedy(3, 4)))
    finally:
        executor.close()
    assert outputs == tokens_of(run(engine_over(one.lend(), DEMO), prompts, greedy(3, 4)))
