"""What a step is made of: the borders of each rule that decides who is in it."""

from __future__ import annotations

import pytest

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.scheduler import RequestView, SchedulerView
from nanofw.engine.host_processors import HostProcessors
from tests.engine.policies import UrgentPreempts
from tests.engine.sim_engines import VOCAB, FirstCome, Run, make_engine, make_request, run
from tests.engine.test_finishing import Even

BOTH = pytest.mark.parametrize("overlap", [False, True])


def test_a_chunk_is_no_longer_than_chunk_tokens() -> None:
    ended = run(make_engine(chunk_tokens=6), make_request("a", 20, 1))
    assert [report.num_prefill_tokens for report in ended.reports] == [6, 6, 6, 2]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_many_prefills_are_partial_at_once(most: int) -> None:
    engine = make_engine(chunk_tokens=6, max_partial_prefills=most)
    ended = run(engine, *(make_request(f"r{i}", 20, 1) for i in range(4)))
    assert ended.reports[0].num_rows == most


class ByPriority(FirstCome):
    """Most urgent first; nobody is given up for it."""

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.priority


@pytest.mark.parametrize("skip_ahead", [0, 1, 2, 3])
def test_no_more_than_skip_ahead_are_passed_over(skip_ahead: int) -> None:
    policy = FirstCome()
    policy.skip_ahead = skip_ahead
    engine = make_engine(policy, num_blocks=8)
    for name, length in (("holder", 16), ("large", 20), ("larger", 24), ("small", 3)):
        engine.add_request(make_request(name, length, 2))
    engine.step()
    assert engine.scheduler.num_running == (2 if skip_ahead >= 2 else 1)


def test_a_new_head_is_tried_at_once_behind_a_blocked_one() -> None:
    engine = make_engine(ByPriority(), num_blocks=8)
    engine.add_request(make_request("holder", 16, 12, priority=1))
    engine.add_request(make_request("large", 20, 2, priority=1))
    engine.step()
    engine.add_request(make_request("small", 3, 4, priority=0))
    engine.step()
    assert engine.scheduler.num_running == 2


def test_a_blocked_head_is_tried_again_when_its_prefix_became_shareable() -> None:
    """No block is freed, yet three of the four that it needs can be shared."""
    engine = make_engine(num_blocks=7)
    prompt = list(range(16))
    outputs = run(engine, make_request("a", prompt, 12), make_request("b", prompt, 1)).outputs
    assert outputs["b"].num_cached_tokens == 12
    assert outputs["b"].scheduled is not None
    assert outputs["b"].scheduled < outputs["a"].finished


class Diary(FirstCome):
    """Notes what it is told, in order."""

    skip_ahead = 4

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self.events.append("start")

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self.events.append("preempt")

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        self.events.append("progress")


@BOTH
def test_nobody_starts_in_a_step_for_which_somebody_was_given_up(overlap: bool) -> None:
    policy = Diary()
    engine = make_engine(policy, num_blocks=8, max_num_seqs=2, overlap=overlap)
    for name, length in (("a", 14), ("b", 12), ("small", 2), ("smaller", 1)):
        engine.add_request(make_request(name, length, 9))
    Run(engine).to_end()
    steps = " ".join(policy.events).split("progress")
    given_up = [step for step in steps if "preempt" in step]
    assert given_up
    assert not any("start" in step for step in given_up)


@BOTH
def test_recomputed_tokens_are_those_that_had_been_computed(overlap: bool) -> None:
    had: list[int] = []

    class Counts(UrgentPreempts):
        def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
            # The last token was drawn, and never went through the model.
            had.append(request.num_prompt_tokens + request.num_output_tokens - 1)

    engine = make_engine(Counts(), allocator="paged", max_num_seqs=1, overlap=overlap)
    engine.add_request(make_request("slow", 8, 20, priority=5))
    ended = Run(engine)
    for _ in range(6):
        ended.step()
    engine.add_request(make_request("urgent", 8, 3, priority=0))
    ended.to_end()
    assert len(had) == 1
    assert ended.outputs["slow"].num_recomputed_tokens == had[0]
    assert engine.scheduler.counters.num_recomputed_tokens == had[0]
    assert engine.scheduler.counters.num_waits == int(overlap)


@BOTH
def test_nobody_gives_way_to_a_request_that_fits_through_its_prefix(overlap: bool) -> None:
    engine = make_engine(UrgentPreempts(), num_blocks=8, overlap=overlap)
    prompt = list(range(20))
    engine.add_request(make_request("a", prompt, 6, priority=5))
    ended = Run(engine)
    for _ in range(3):
        ended.step()
    engine.add_request(make_request("b", prompt, 2, priority=0))
    ended.to_end()
    assert list(ended.outputs) == ["b", "a"]
    assert ended.outputs["b"].num_cached_tokens == 16
    assert ended.outputs["a"].num_preemptions == 0


@BOTH
def test_what_a_failed_pass_wrote_is_found_by_nobody(overlap: bool) -> None:
    """The executor complains of a context that a failed pass wrote."""
    engine = make_engine(sim={"failure_probability": 0.3}, overlap=overlap)
    ended = Run(engine)
    for i in range(24):
        prompt = list(range(i // 2, i // 2 + 9))
        engine.add_request(make_request(f"r{i}", prompt, 4, seed=i))
        ended.to_end()
    at_once = [len(ended.tokens()[f"r{i}"]) == 0 for i in range(0, 24, 2)]
    assert any(at_once)
    assert not all(at_once)


@BOTH
def test_masks_are_asked_for_where_a_token_is_drawn(overlap: bool) -> None:
    """Not for the chunks of a prompt before its last; the executor checks each plan."""
    processors = HostProcessors({"even": Even()}, VOCAB)
    engine = make_engine(host_processors=processors, chunk_tokens=6, overlap=overlap)
    tokens = run(engine, make_request("a", 20, 5), make_request("b", 3, 9)).tokens()
    assert {len(tokens["a"]), len(tokens["b"])} == {5, 9}
    assert not any(token % 2 for ids in tokens.values() for token in ids)


class Counting(Even):
    """Allows one token: how many came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_seen: dict[str, int] = {}

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        self.num_seen[request_id] = self.num_seen.get(request_id, 0) + len(token_ids)

    def mask(self, request_id: str, bits: IntArray) -> None:
        bits[:] = 0
        bits[0] = 1 << self.num_seen.get(request_id, 0)


@BOTH
@pytest.mark.parametrize("num_blocks", [64, 7])
def test_a_mask_knows_every_token_before_it(overlap: bool, num_blocks: int) -> None:
    processors = HostProcessors({"counting": Counting()}, VOCAB)
    engine = make_engine(host_processors=processors, overlap=overlap, num_blocks=num_blocks)
    tokens = run(engine, *(make_request(f"r{i}", 5 + i, 12) for i in range(3))).tokens()
    assert list(tokens.values()) == [list(range(12))] * 3
    assert (engine.scheduler.counters.num_preemptions > 0) == (num_blocks == 7)
