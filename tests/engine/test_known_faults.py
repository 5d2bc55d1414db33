"""Faults seen in public engines that concern the core, named by their id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nanofw.contracts.requests import FinishReason
from nanofw.errors import RequestError
from tests.engine.sim_engines import Run, make_engine, make_request, run
from tests.engine.test_machine import check_idle

BOTH = pytest.mark.parametrize("overlap", [False, True])


@BOTH
def test_B001_wholly_cached_prompt_still_computes_its_last_token(overlap: bool) -> None:
    engine = make_engine(block_size=4, overlap=overlap)
    prompt = [5, 9, 2, 7, 11, 3, 8, 1]
    first = run(engine, make_request("a", prompt, 1, seed=3)).outputs["a"]
    second = run(engine, make_request("b", prompt, 1, seed=3)).outputs["b"]
    assert second.token_ids.tolist() == first.token_ids.tolist()
    assert second.num_cached_tokens == 4


@BOTH
def test_B002_reused_block_is_not_found_under_its_old_hash(overlap: bool) -> None:
    a, b = list(range(1, 8)), list(range(11, 18))
    engine = make_engine(num_blocks=2, block_size=4, overlap=overlap)
    for name, prompt in (("a1", a), ("b", b), ("a2", a)):
        output = run(engine, make_request(name, prompt, 1, seed=1)).outputs[name]
        assert output.num_cached_tokens == 0
    uncached = make_engine(allocator="paged", num_blocks=2, block_size=4)
    expected = run(uncached, make_request("a", a, 1, seed=1)).tokens()["a"]
    assert output.token_ids.tolist() == expected


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_B004_equal_prompts_in_one_step(order: tuple[str, str]) -> None:
    engine = make_engine(block_size=4)
    prompt = [5, 9, 2, 7, 11, 3, 8, 1]
    for name in ("a", "b"):
        engine.add_request(make_request(name, prompt, 20, seed=4))
    started = Run(engine)
    for _ in range(3):
        started.step()
    assert engine.scheduler.allocator.stats().num_duplicates > 0
    engine.abort_request(order[0])
    engine.add_request(make_request("c", prompt, 2, seed=4))
    outputs = started.to_end().outputs
    assert outputs["c"].num_cached_tokens == 4
    assert outputs["c"].token_ids.tolist() == outputs[order[1]].token_ids.tolist()[:2]
    check_idle(engine)


@BOTH
def test_B006_recomputed_tokens_are_not_prefix_hits(overlap: bool) -> None:
    engine = make_engine(num_blocks=10, block_size=4, overlap=overlap)
    run(engine, *(make_request(f"r{i}", 9 + i, 16) for i in range(6)))
    counters = engine.scheduler.counters
    assert counters.num_preemptions > 0
    assert counters.num_cached_tokens == 0
    assert counters.num_recomputed_tokens + counters.num_recovered_tokens > 0


@BOTH
@pytest.mark.parametrize("num_blocks", [24, 40])
def test_B012_resumed_requests_account_for_every_token(num_blocks: int, overlap: bool) -> None:
    generator = np.random.default_rng(0)
    engine = make_engine(
        num_blocks=num_blocks, block_size=4, max_num_seqs=64, max_num_batched_tokens=128,
        overlap=overlap,
    )  # fmt: skip
    lengths = generator.integers(1, 40, (256, 2))
    requests = [make_request(f"r{i}", int(p), int(o)) for i, (p, o) in enumerate(lengths)]
    ended = run(engine, *requests)
    assert engine.scheduler.counters.num_preemptions > 0
    for request in requests:
        output = ended.outputs[request.id]
        room = 64 - len(request.prompt_token_ids)
        assert len(output.token_ids) == min(request.sampling.max_tokens or 0, room)
        assert output.finish_reason is FinishReason.LENGTH
    check_idle(engine)


@BOTH
def test_B014_preempted_stream_is_complete(overlap: bool) -> None:
    ample = run(make_engine(num_blocks=64), make_request("a", 5, 40, seed=2)).tokens()["a"]
    engine = make_engine(num_blocks=14, block_size=4, overlap=overlap)
    requests = [
        make_request("other", 5, 40, arrival=-1.0),  # older, so "a" is the one that gives way
        make_request("a", 5, 40, seed=2, stream=True),
    ]
    ended = run(engine, *requests)
    output = ended.outputs["a"]
    assert output.num_preemptions > 0
    streamed = np.concatenate([delta.token_ids for delta in ended.deltas])
    assert streamed.tolist() == output.token_ids.tolist() == ample


@BOTH
def test_B016_seeded_tokens_survive_preemption(overlap: bool) -> None:
    ample = run(make_engine(), make_request("a", 6, 20, seed=42, temperature=0.8)).tokens()["a"]
    engine = make_engine(num_blocks=9, block_size=4, overlap=overlap)
    others = [make_request(f"o{i}", 6, 20, arrival=-1.0) for i in range(2)]
    ended = run(engine, *others, make_request("a", 6, 20, seed=42, temperature=0.8))
    assert ended.outputs["a"].num_preemptions > 0
    assert ended.tokens()["a"] == ample


def test_B018_a_chunk_reads_its_own_context_only() -> None:
    whole = run(make_engine(max_num_batched_tokens=64), make_request("a", 40, 1, seed=1))
    engine = make_engine(max_num_batched_tokens=16)
    chunked = run(engine, make_request("a", 40, 1, seed=1))
    assert [report.num_prefill_tokens for report in chunked.reports] == [16, 16, 8]
    assert chunked.tokens() == whole.tokens()


def test_B020_nothing_is_sampled_in_a_chunk_that_is_not_the_last() -> None:
    requests = [make_request(f"r{i}", 30 + i, 12, seed=i) for i in range(4)]
    plain = run(make_engine(chunk_tokens=7), *requests)
    overlapped = run(make_engine(chunk_tokens=7, overlap=True), *requests)
    assert overlapped.tokens() == plain.tokens()


@pytest.mark.parametrize("prefill_first", [False, True])
def test_B021_the_budget_of_a_step_is_kept(prefill_first: bool) -> None:
    engine = make_engine(max_num_batched_tokens=32, prefill_first=prefill_first, max_num_seqs=64)
    ended = run(engine, *(make_request(f"r{i}", 16, 4) for i in range(20)))
    totals = [report.num_prefill_tokens + report.num_decode_tokens for report in ended.reports]
    assert max(totals) <= 32
    assert ended.reports[0].num_prefill_tokens == 32


@BOTH
def test_B024_a_prompt_larger_than_the_pool_is_refused_with_both_numbers(overlap: bool) -> None:
    engine = make_engine(num_blocks=4, block_size=4, max_model_len=64, overlap=overlap)
    with pytest.raises(RequestError, match=r"needs 10 KV blocks .* the pool has 4"):
        engine.add_request(make_request("big", 40, 4))
    assert run(engine, make_request("small", 4, 4)).outputs["small"].finish_reason == "length"


@pytest.mark.parametrize(("length", "allowed"), [(15, True), (16, False), (17, False)])
def test_B028_a_prompt_as_long_as_the_model_is_refused(length: int, allowed: bool) -> None:
    engine = make_engine(max_model_len=16)
    request = make_request("a", length, 1)
    if not allowed:
        with pytest.raises(RequestError, match="at most 15 leave room"):
            engine.add_request(request)
        assert not engine.has_unfinished
        return
    output = run(engine, request).outputs["a"]
    assert (len(output.token_ids), output.finish_reason) == (1, FinishReason.LENGTH)


def test_B030_an_empty_prompt_is_refused_alone() -> None:
    engine = make_engine()
    engine.add_request(make_request("good", 4, 3))
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.add_request(make_request("empty", [], 3))
    assert isinstance(RequestError("x", "y"), ValueError)
    assert list(Run(engine).to_end().outputs) == ["good"]


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, True, "4"])
def test_B031_max_tokens_that_make_no_sense_are_refused(max_tokens: Any) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="max_tokens is .*must be from 1 to"):
        engine.add_request(make_request("a", 4, max_tokens))
    assert not engine.has_unfinished


def test_B031_without_max_tokens_a_request_runs_to_the_models_length() -> None:
    output = run(make_engine(max_model_len=32), make_request("a", 4, None)).outputs["a"]
    assert (len(output.token_ids), output.finish_reason) == (28, FinishReason.LENGTH)


def test_B038_a_second_live_request_of_one_id_is_refused() -> None:
    engine = make_engine()
    engine.add_request(make_request("x", 4, 6, seed=1))
    started = Run(engine)
    started.step()
    with pytest.raises(RequestError, match="ids must be unique"):
        engine.add_request(make_request("x", 9, 2))
    assert len(started.to_end().outputs["x"].token_ids) == 6
    engine.add_request(make_request("x", 4, 2))  # free again
    assert len(Run(engine).to_end().outputs["x"].token_ids) == 2


@BOTH
@pytest.mark.parametrize("allocator", ["paged", "paged_prefix"])
@pytest.mark.parametrize("moment", ["waiting", "prefill", "decoding", "preempted"])
def test_B043_abort_in_every_state(moment: str, allocator: str, overlap: bool) -> None:
    engine = make_engine(
        allocator=allocator, num_blocks=10, block_size=4, max_num_seqs=3,
        max_num_batched_tokens=8, overlap=overlap,
    )  # fmt: skip
    ended, target = Run(engine), None
    for i in range(5):
        engine.add_request(make_request(f"r{i}", 10, 16, seed=i))
    for _ in range(200):
        target = _request_in(engine, moment)
        if target is not None:
            break
        ended.step()
    assert target is not None, f"no request was ever {moment}"
    assert engine.abort_request(target)
    assert not engine.abort_request(target)
    outputs = ended.to_end().outputs
    assert outputs[target].finish_reason is FinishReason.ABORT
    assert all(len(outputs[f"r{i}"].token_ids) == 16 for i in range(5) if f"r{i}" != target)
    check_idle(engine)


def _request_in(engine, moment: str) -> str | None:
    scheduler = engine.scheduler
    for (state,) in list(scheduler._states.values()):
        running = state.row >= 0
        prefilling = running and bool(scheduler.rows.prefilling[state.row])
        now = {
            "waiting": not running and state.num_preemptions == 0,
            "preempted": not running and state.num_preemptions > 0,
            "prefill": prefilling,
            "decoding": running and not prefilling,
        }
        if now[moment]:
            return state.request.id
    return None


@BOTH
def test_B007_requests_that_share_a_prefix_keep_their_own_blocks(overlap: bool) -> None:
    prefix = list(range(1, 17))
    requests = [make_request(f"r{i}", [*prefix, 20 + i], 12, seed=i) for i in range(3)]
    uncached = run(make_engine(allocator="paged"), *requests)
    engine = make_engine(num_blocks=64, block_size=1, max_num_seqs=2, overlap=overlap)
    ended = Run(engine)
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished:  # the third takes the pages that the first two let go
        ended.step()
        engine.scheduler.allocator.check_integrity()
    assert ended.tokens() == uncached.tokens()
    assert ended.outputs["r2"].num_cached_tokens == 16


@pytest.mark.parametrize(("prefill_first", "largest_gap"), [(False, 1), (True, 6)])
def test_B023_mixed_batching_keeps_a_decoding_request_going(
    prefill_first: bool, largest_gap: int
) -> None:
    """`prefill_first` lets arrivals hold up decoding, as documented; `mixed` never does."""
    engine = make_engine(prefill_first=prefill_first, max_num_batched_tokens=16, num_blocks=64)
    engine.add_request(make_request("decoding", 4, 30, stream=True))
    ended, gaps, last = Run(engine), [], 0
    for step in range(40):
        if 4 <= step < 10:
            engine.add_request(make_request(f"late{step}", 16, 1))
        seen = len(ended.deltas)
        ended.step()
        if len(ended.deltas) > seen:
            gaps.append(step - last)
            last = step
    assert max(gaps[1:]) == largest_gap + (1 if prefill_first else 0)
