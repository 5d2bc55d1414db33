"""The simulated executor by itself: time, tokens, masks, failures, and the protocol's checks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.plan import HostMasks, NewRow, StepPlan
from nanofw.contracts.requests import SamplingParams
from nanofw.errors import ExecutorError
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions

BLOCK = 4
EOS = 7


def ints(*values: int) -> IntArray:
    return np.array(values, np.int32)


def spec(vocab_size: int = 50) -> ModelSpec:
    return ModelSpec(
        architecture="Qwen3ForCausalLM", path="tiny", dtype="float32", vocab_size=vocab_size,
        hidden_size=8, intermediate_size=16, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=8, max_model_len=64, eos_token_ids=(EOS,),
    )  # fmt: skip


def executor(num_blocks: int | None = 16, vocab_size: int = 50, **options: Any) -> SimExecutor:
    config = ExecutorConfig(
        spec=spec(vocab_size), block_size=BLOCK, num_blocks=num_blocks, max_num_seqs=8,
        max_num_batched_tokens=32, max_model_len=64, clock=VirtualClock(),
    )  # fmt: skip
    return SimExecutor(SimOptions(**options), config)


def new_row(row: int, tokens: list[int], blocks: list[int], **kwargs: Any) -> NewRow:
    more: dict[str, Any] = {"seed": 100 + row} | kwargs
    return NewRow(
        row=row, request_id=f"r{row}", token_ids=ints(*tokens), num_prompt_tokens=len(tokens),
        block_ids=ints(*blocks), sampling=SamplingParams(), **more,
    )  # fmt: skip


def plan(
    step: int, *lines: tuple[int, int, int, bool], num_decodes: int = 0, **kwargs: Any
) -> StepPlan:
    """Lines are (row, num_tokens, start, samples)."""
    rows, nums, starts, samples = zip(*lines, strict=True) if lines else ((), (), (), ())
    return StepPlan(
        step=step, rows=ints(*rows), num_tokens=ints(*nums), starts=ints(*starts),
        samples=np.array(samples, np.bool_), num_decodes=num_decodes, **kwargs,
    )  # fmt: skip


def prompt_plan(step: int = 0, row: int = 0, length: int = 5, **kwargs: Any) -> StepPlan:
    blocks = list(range(-(-(length + 3) // BLOCK)))
    return plan(
        step, (row, length, 0, True), new=[new_row(row, list(range(length)), blocks)], **kwargs
    )


def decode_plan(step: int, start: int, row: int = 0, **kwargs: Any) -> StepPlan:
    return plan(step, (row, 1, start, True), num_decodes=1, **kwargs)


def test_satisfies_the_contract() -> None:
    assert isinstance(executor(), Executor)


def test_default_pool_holds_every_row_at_full_length() -> None:
    assert executor(num_blocks=None).capacity().num_blocks == 8 * 16
    assert executor(num_blocks=5).capacity().num_blocks == 5


def test_an_empty_pool_is_an_error_with_the_key() -> None:
    with pytest.raises(ExecutorError, match=r"kv_allocator\.num_blocks must be at least 1"):
        executor(num_blocks=0)


class TestTime:
    def test_submit_leaves_the_clock_and_collect_moves_it(self) -> None:
        sim = executor(seconds_per_step=0.5)
        sim.submit(prompt_plan())
        assert sim._clock.now() == 0.0
        assert sim.collect().seconds == 0.5
        assert sim._clock.now() == 0.5

    def test_steps_in_flight_queue_on_the_device(self) -> None:
        sim = executor(seconds_per_step=0.5)
        sim.submit(prompt_plan())
        sim.submit(decode_plan(1, 5))
        sim.collect()
        sim.submit(decode_plan(2, 6))
        assert sim._clock.now() == 0.5
        sim.collect()
        assert sim._clock.now() == 1.0
        sim.collect()
        assert sim._clock.now() == 1.5

    def test_an_idle_device_starts_when_the_plan_comes(self) -> None:
        sim = executor(seconds_per_step=0.5)
        sim._clock.wait_until(10.0)
        sim.submit(prompt_plan())
        sim.collect()
        assert sim._clock.now() == 10.5

    def test_masks_that_come_late_hold_the_device(self) -> None:
        sim = executor(seconds_per_step=0.5)
        sim.submit(prompt_plan(host_rows=ints(0)))
        sim._clock.wait_until(2.0)
        sim.provide(HostMasks(step=0, bits=np.full((1, 2), -1, np.int32)))
        sim.submit(decode_plan(1, 5))
        sim.collect()
        assert sim._clock.now() == 2.0
        sim.collect()
        assert sim._clock.now() == 2.5


class TestTokens:
    def test_depend_on_seed_sample_index_and_position_only(self) -> None:
        alone = executor()
        alone.submit(prompt_plan())
        alone.submit(decode_plan(1, 5))
        expected = [int(alone.collect().token_ids[0]) for _ in range(2)]

        batched = executor()
        first, other = new_row(3, [0, 1, 2, 3, 4], [0, 1], seed=100), new_row(1, [9], [2])
        batched.submit(plan(0, (1, 1, 0, True), new=[other]))
        batched.submit(plan(1, (1, 1, 1, True), (3, 3, 0, False), num_decodes=1, new=[first]))
        batched.collect()
        batched.submit(plan(2, (3, 2, 3, True)))
        batched.collect()
        batched.submit(plan(3, (1, 1, 2, True), (3, 1, 5, True), num_decodes=2))
        seen = [int(batched.collect().token_ids[0]), int(batched.collect().token_ids[1])]
        assert seen == expected

    def test_siblings_and_seeds_differ(self) -> None:
        sim = executor(vocab_size=1 << 20)
        rows = [
            new_row(0, [1], [0], seed=1), new_row(1, [1], [1], seed=1, sample_index=1),
            new_row(2, [1], [2], seed=2),
        ]  # fmt: skip
        sim.submit(plan(0, *((r, 1, 0, True) for r in range(3)), new=rows))
        assert len(set(sim.collect().token_ids.tolist())) == 3

    def test_seeds_of_any_sign_and_size(self) -> None:
        sim = executor()
        rows = [new_row(r, [1], [r], seed=s) for r, s in enumerate((-1, 0, 2**63, 2**64 - 1))]
        sim.submit(plan(0, *((r, 1, 0, True) for r in range(4)), new=rows))
        assert set(sim.collect().token_ids.tolist()) <= set(range(50))

    @pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
    def test_end_tokens_at_the_rate_asked_for(self, probability: float) -> None:
        sim = executor(eos_probability=probability)
        sim.submit(plan(0, (0, 1, 0, True), new=[new_row(0, [1], [0])]))
        tokens = [int(sim.collect().token_ids[0])]
        for step in range(1, 400):
            sim.submit(decode_plan(step, step))
            tokens.append(int(sim.collect().token_ids[0]))
        rate = tokens.count(EOS) / len(tokens)
        assert rate == pytest.approx(probability, abs=0.07 if 0 < probability < 1 else 0.0)
        assert len(set(tokens)) > 40 or probability == 1.0

    def test_masked_rows_draw_allowed_tokens_only(self) -> None:
        sim = executor()
        bits = np.zeros((1, 2), np.uint32)
        bits[0, 0], bits[0, 1] = 1 << 31, 1 << 3
        sim.submit(prompt_plan(length=1, host_rows=ints(0)))
        seen: set[int] = set()
        for step in range(1, 30):
            sim.provide(HostMasks(step=step - 1, bits=bits.view(np.int32)))
            seen.add(int(sim.collect().token_ids[0]))
            sim.submit(decode_plan(step, step, host_rows=ints(0)))
        assert seen == {31, 35}

    def test_a_mask_of_the_end_token_alone_ends(self) -> None:
        sim = executor()
        sim.submit(prompt_plan(host_rows=ints(0)))
        sim.provide(HostMasks(step=0, bits=ints(1 << EOS, 0).reshape(1, 2)))
        assert sim.collect().token_ids.tolist() == [EOS]

    def test_a_mask_that_allows_nothing_fails_the_row(self) -> None:
        sim = executor()
        sim.submit(prompt_plan(host_rows=ints(0)))
        sim.provide(HostMasks(step=0, bits=np.zeros((1, 2), np.int32)))
        failed = sim.collect().failed
        assert failed is not None
        assert failed.tolist() == [True]


class TestFailures:
    def test_none_unless_asked_for(self) -> None:
        sim = executor()
        sim.submit(prompt_plan())
        assert sim.collect().failed is None

    def test_a_failed_row_goes_on_failing_until_it_is_new(self) -> None:
        sim = executor(failure_probability=0.2, num_blocks=64)
        sim.submit(plan(0, (0, 1, 0, True), new=[new_row(0, [1], [0])]))
        flags: list[bool] = []
        for step in range(1, 60):
            failed = sim.collect().failed
            flags.append(failed is not None and bool(failed[0]))
            sim.submit(decode_plan(step, step))
        assert not flags[0]
        assert flags == sorted(flags)
        assert flags[-1]


class TestOrder:
    def test_collect_needs_a_step(self) -> None:
        with pytest.raises(ExecutorError, match="without a submitted step"):
            executor().collect()

    def test_steps_have_no_gaps(self) -> None:
        with pytest.raises(ExecutorError, match="plan 1 came where plan 0 was due"):
            executor().submit(prompt_plan(step=1))

    def test_at_most_max_in_flight(self) -> None:
        sim = executor(max_in_flight=1)
        sim.submit(prompt_plan())
        with pytest.raises(ExecutorError, match=r"one more than the 1 in flight.*collect first"):
            sim.submit(decode_plan(1, 5))

    def test_nothing_happens_while_masks_are_due(self) -> None:
        sim = executor()
        sim.submit(prompt_plan(host_rows=ints(0)))
        with pytest.raises(ExecutorError, match="waits for masks"):
            sim.collect()
        with pytest.raises(ExecutorError, match="waits for masks"):
            sim.submit(decode_plan(1, 5))

    def test_masks_only_where_they_are_due(self) -> None:
        sim = executor()
        sim.submit(prompt_plan())
        with pytest.raises(ExecutorError, match="does not wait for them"):
            sim.provide(HostMasks(step=0, bits=np.zeros((1, 2), np.int32)))

    def test_close_twice_then_refuses(self) -> None:
        sim = executor()
        sim.close()
        sim.close()
        with pytest.raises(ExecutorError, match="closed"):
            sim.submit(prompt_plan())


def checked(**kwargs: Any) -> SimExecutor:
    return executor(check_context=True, **kwargs)


def started(**kwargs: Any) -> SimExecutor:
    sim = checked(**kwargs)
    sim.submit(prompt_plan())
    sim.collect()
    return sim


BROKEN: dict[str, tuple[Callable[[], StepPlan], str]] = {
    "empty row runs": (lambda: decode_plan(1, 0, row=2), "runs row 2, which is empty"),
    "row twice": (lambda: plan(1, (0, 1, 5, True), (0, 1, 5, True)), "a row runs twice"),
    "wrong start": (lambda: decode_plan(1, 6), "starts at 6, 5 are computed"),
    "past its tokens": (lambda: plan(1, (0, 2, 5, True)), "computes to 7, knows 6"),
    "no token": (lambda: plan(1, (0, 0, 5, False)), "computes no token"),
    "wide decode": (lambda: plan(1, (0, 2, 5, True), num_decodes=1), "decode of many tokens"),
    "removes an empty row": (lambda: decode_plan(1, 5, removed=ints(3)), "removes row 3"),
    "takes a taken row": (
        lambda: decode_plan(1, 5, new=[new_row(0, [1], [9])]), "new row 0 is taken",
    ),
    "row out of range": (
        lambda: decode_plan(1, 5, new=[new_row(8, [1], [9])]), "new row 8 is out of range",
    ),
    "block out of range": (
        lambda: decode_plan(1, 5, new=[new_row(1, [1], [16])]), "not in the pool of 16",
    ),
    "hole in a table": (
        lambda: decode_plan(1, 5, block_rows=ints(0), block_positions=ints(4), block_ids=ints(9)),
        "block at 4, table has 2",
    ),
    "block for a new row": (
        lambda: plan(
            1, (1, 1, 0, True), new=[new_row(1, [1], [9])], block_rows=ints(1),
            block_positions=ints(1), block_ids=ints(10),
        ),
        "which was not there before",
    ),
    "no room for lookahead": (lambda: decode_plan(1, 5, lookahead=3), "8 slots for 6 tokens"),
    "not the same rows": (lambda: decode_plan(1, 5, same_rows=True), "says same_rows"),
    "host row does not sample": (
        lambda: decode_plan(1, 5, host_rows=ints(1)), "host row does not sample",
    ),
    "samples too early": (
        lambda: plan(1, (1, 2, 0, True), new=[new_row(1, [1, 2, 3], [9])]),
        "samples before its last token",
    ),
    "decodes its prompt": (
        lambda: plan(1, (1, 1, 0, False), num_decodes=1, new=[new_row(1, [1, 2], [9])]),
        "decodes within its prompt",
    ),
    "no slots": (
        lambda: plan(1, (1, 5, 0, True), new=[new_row(1, [1] * 5, [9])]), "4 slots for 5 tokens",
    ),
    "over the budget": (
        lambda: plan(1, (1, 33, 0, True), new=[new_row(1, [1] * 33, list(range(2, 11)))]),
        "33 tokens, max_num_batched_tokens is 32",
    ),
    "writes a shared block": (
        lambda: plan(1, (1, 4, 0, True), new=[new_row(1, [0, 1, 2, 3], [0])]),
        r"writes block 0, in tables of rows \[0, 1\]",
    ),
    "two rows write one slot": (
        lambda: plan(1, (1, 1, 0, True), (2, 1, 0, True),
                     new=[new_row(1, [1], [9]), new_row(2, [1], [9])]),
        r"writes block 9, in tables of rows \[1, 2\]",
    ),
    "one block twice in a table": (
        lambda: plan(1, (1, 5, 0, True), new=[new_row(1, [1] * 5, [9, 9])]),
        r"writes block 9, in tables of rows \[1, 1\]",
    ),
}  # fmt: skip


class TestContext:
    @pytest.mark.parametrize("name", BROKEN)
    def test_broken_plans_are_refused(self, name: str) -> None:
        make, message = BROKEN[name]
        with pytest.raises(ExecutorError, match=message):
            started().submit(make())

    def test_a_right_prefix_hit_passes(self) -> None:
        sim = started()
        hit = new_row(1, [0, 1, 2, 3, 8, 9], [0, 5])
        sim.submit(plan(1, (0, 1, 5, True), (1, 2, 4, True), num_decodes=1, new=[hit]))
        sim.collect()

    def test_a_hit_with_other_tokens_is_found(self) -> None:
        hit = new_row(1, [0, 1, 9, 3, 8], [0, 5])
        with pytest.raises(ExecutorError, match="row 1: block 0 has KV of another context at posi"):
            started().submit(plan(1, (1, 1, 4, True), new=[hit]))

    def test_equal_tokens_after_another_prefix_are_found(self) -> None:
        """Content alone does not make a block reusable: its KV depends on what came before."""
        sim = checked()
        sim.submit(plan(0, (0, 8, 0, True), new=[new_row(0, [1, 1, 1, 1, 2, 2, 2, 2], [0, 1, 2])]))
        sim.collect()
        other = new_row(1, [3, 3, 3, 3, 2, 2, 2, 2, 5], [4, 1, 5])
        sim.submit(plan(1, (1, 4, 0, False), new=[new_row(1, [3, 3, 3, 3, 9], [4])]))
        sim.collect()
        with pytest.raises(ExecutorError, match="block 1 has KV of another context at position 4"):
            sim.submit(plan(2, (1, 1, 8, True), removed=ints(1), new=[other]))

    def test_a_block_never_computed_is_found(self) -> None:
        with pytest.raises(ExecutorError, match="block 9 has KV of another context at position 0"):
            started().submit(plan(1, (1, 1, 4, True), new=[new_row(1, [5] * 5, [9, 8])]))

    def test_copies_carry_the_context(self) -> None:
        sim = started()
        copied = new_row(1, [0, 1, 2, 3, 8], [7, 8])
        copies = np.array([[0, 7]], np.int32)
        sim.submit(plan(1, (1, 1, 4, True), new=[copied], copies=copies))
        sim.collect()

    def test_blocks_may_be_reused_once_their_row_is_removed(self) -> None:
        sim = started()
        again = new_row(1, [9, 9, 9, 9, 9], [0, 1])
        sim.submit(plan(1, (1, 5, 0, True), removed=ints(0), new=[again]))
        sim.collect()

    def test_kv_of_a_failed_pass_is_not_shareable(self) -> None:
        sim = checked(failure_probability=1.0)
        sim.submit(prompt_plan())
        assert sim.collect().failed is not None
        sim._options = SimOptions(check_context=True)
        with pytest.raises(ExecutorError, match="has KV of a failed pass at position 0"):
            sim.submit(plan(1, (1, 1, 4, True), new=[new_row(1, [0, 1, 2, 3, 8], [0, 5])]))

    @settings(max_examples=50)
    @given(cuts=st.sets(st.integers(1, 19)), hit=st.integers(0, 4), extra=st.integers(0, 6))
    def test_chunks_hits_and_preemptions_never_change_a_token(
        self, cuts: set[int], hit: int, extra: int
    ) -> None:
        tokens = [(7 * i) % 50 for i in range(20)]
        blocks = list(range(8))
        expected = self._generate(checked(num_blocks=64), tokens, blocks, [0, 20], 8)
        sim = checked(num_blocks=64)
        chunked = self._generate(sim, tokens, blocks, [0, *sorted(cuts), 20], extra)
        assert chunked == expected[:extra]
        step, start = sim._next_step, hit * BLOCK
        table = [*blocks[:hit], *range(20, 28 - hit)]
        back = new_row(5, tokens + chunked, table, seed=100)
        sim.submit(plan(step, (5, 20 + extra - start, start, True), new=[back], removed=ints(0)))
        assert int(sim.collect().token_ids[0]) == expected[extra]

    def _generate(
        self, sim: SimExecutor, tokens: list[int], blocks: list[int], cuts: list[int], num: int
    ) -> list[int]:
        new, out = [new_row(0, tokens, blocks)], list[int]()
        for step, (start, end) in enumerate(pairwise(cuts)):
            last = end == cuts[-1] and num > 0
            sim.submit(plan(step, (0, end - start, start, last), new=new))
            out, new = sim.collect().token_ids.tolist(), []
        for i in range(1, num):
            sim.submit(decode_plan(len(cuts) - 2 + i, len(tokens) + i - 1))
            out += sim.collect().token_ids.tolist()
        return out
