"""The keys that built-in policies give, and the first admissions of `fcfs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import RequestView, RunningView, SchedulerView
from nanofw.schedulers.fcfs import Fcfs, FcfsOptions
from nanofw.schedulers.shortest_job_first import ShortestJobFirst, ShortestJobFirstOptions


@dataclass
class _View:
    id: str = "r"
    index: int = 0
    arrival: float = 0.0
    client: str = ""
    priority: int = 0
    deadline: float | None = None
    num_prompt_tokens: int = 10
    num_output_tokens: int = 0
    max_tokens: int = 100
    expected_output_tokens: int | None = None
    num_preemptions: int = 0


@dataclass
class _Pool:
    now: float = 0.0
    num_blocks: int = 100
    num_free_blocks: int = 100
    block_size: int = 16
    num_running: int = 1
    num_waiting: int = 1
    max_num_seqs: int = 8
    budget: int = 64
    needed: int = 1
    taken: int | None = None
    running: RunningView | None = None

    def blocks_needed(self, request: RequestView) -> int:
        return self.needed

    def blocks_to_take(self, request: RequestView) -> int:
        return self.needed if self.taken is None else self.taken


def sjf(**options: object) -> Any:
    return ShortestJobFirst(ShortestJobFirstOptions.model_validate(options))


def View(**values: Any) -> Any:
    """A request as a policy sees it."""
    return _View(**values)


def Pool(**values: Any) -> Any:
    """The engine as a policy sees it."""
    return _Pool(**values)


def test_fcfs_ranks_by_arrival() -> None:
    policy: Any = Fcfs(FcfsOptions())
    assert policy.key(View(arrival=1.0, num_prompt_tokens=900), 5.0) < policy.key(
        View(arrival=2.0), 5.0
    )


@pytest.mark.parametrize(
    ("pool", "admitted"),
    [
        (Pool(num_free_blocks=20, needed=10), True),
        (Pool(num_free_blocks=20, needed=11), False),
        (Pool(num_free_blocks=20, needed=11, taken=10), True),
        (Pool(num_free_blocks=20, needed=20, num_running=0), True),
    ],
)
def test_fcfs_keeps_the_watermark_free(pool: SchedulerView, admitted: bool) -> None:
    assert Fcfs(FcfsOptions(watermark=0.1)).admit(View(), pool) is admitted
    assert Fcfs(FcfsOptions(watermark=0.0)).admit(View(), pool)


def test_sjf_by_prompt_output_and_total() -> None:
    long_prompt = View(num_prompt_tokens=90, expected_output_tokens=5)
    long_output = View(num_prompt_tokens=10, expected_output_tokens=50)
    assert sjf().key(long_output, 0) < sjf().key(long_prompt, 0)
    assert sjf(by="output").key(long_prompt, 0) < sjf(by="output").key(long_output, 0)
    assert sjf(by="total").key(long_prompt, 0) == 95
    assert sjf(by="total", prompt_weight=0.1).key(long_prompt, 0) == 14


def test_sjf_counts_what_is_left_after_a_preemption() -> None:
    half_done = View(expected_output_tokens=50, num_output_tokens=30)
    outlived = View(expected_output_tokens=50, num_output_tokens=60)
    assert sjf(by="output").key(half_done, 0) == 20
    assert sjf(by="output").key(outlived, 0) == 1


def test_sjf_without_a_guess_takes_max_tokens() -> None:
    assert sjf(by="output").key(View(max_tokens=70), 0) == 70


def test_sjf_predicts_from_finished_requests_of_the_same_kind() -> None:
    policy = sjf(by="output", output_length="predicted")
    chat = View(client="chat", expected_output_tokens=80)
    assert policy.key(chat, 0) == 80
    policy.on_finish(View(client="chat", num_output_tokens=20), FinishReason.STOP, 1.0)
    assert policy.key(chat, 0) == 20
    assert policy.key(View(client="code", expected_output_tokens=80), 0) == 80
    policy.on_finish(View(client="chat", num_output_tokens=1), FinishReason.ABORT, 1.0)
    assert policy.key(chat, 0) == 20
    assert policy.key(View(client="chat", max_tokens=4), 0) == 4


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 500), min_size=2, max_size=2),
    arrivals=st.lists(st.integers(0, 100), min_size=2, max_size=2),
    now=st.integers(100, 1000),
    ageing=st.integers(0, 50),
)
def test_static_ageing_orders_as_ageing_at_any_time(
    lengths: list[int], arrivals: list[int], now: int, ageing: int
) -> None:
    """`length + ageing * arrival` and `length - ageing * waited` differ by a constant."""
    policy = sjf(ageing=ageing)
    keys = [
        policy.key(View(num_prompt_tokens=n, arrival=a), a)
        for n, a in zip(lengths, arrivals, strict=True)
    ]
    aged = [n - ageing * (now - a) for n, a in zip(lengths, arrivals, strict=True)]
    assert (keys[0] < keys[1]) == (aged[0] < aged[1])
