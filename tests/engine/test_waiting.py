"""The waiting queue, through the engine."""

from __future__ import annotations

import gc
from collections.abc import Hashable

import numpy as np
import pytest

from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import RequestView
from nanofw.engine.request_state import RequestState
from tests.engine.policies import ClientsInTurn, UrgentPreempts
from tests.engine.sim_engines import FirstCome, Run, make_engine, make_request, run


def test_a_group_whose_key_grew_waits_behind_the_others() -> None:
    engine = make_engine(ClientsInTurn(), max_num_seqs=1)
    requests = [
        make_request(f"{client}{i}", 4, 3, client=client) for i, client in enumerate("aaab")
    ]
    assert list(run(engine, *requests).outputs) == ["a0", "b3", "a1", "a2"]


def test_a_request_keeps_its_group_when_it_is_given_up() -> None:
    asked: list[str] = []

    class Groups(UrgentPreempts):
        def group(self, request: RequestView) -> Hashable:
            asked.append(request.id)
            return request.client

    engine = make_engine(Groups(), max_num_seqs=1)
    engine.add_request(make_request("slow", 8, 20, priority=5))
    ended = Run(engine)
    for _ in range(6):
        ended.step()
    engine.add_request(make_request("urgent", 8, 3, priority=0))
    assert ended.to_end().outputs["slow"].num_preemptions == 1
    assert asked == ["slow", "urgent"]


@pytest.mark.parametrize("policy", [FirstCome, ClientsInTurn])
def test_aborted_requests_do_not_pile_up_behind_a_long_one(policy: type[FirstCome]) -> None:
    def num_kept() -> int:
        gc.collect()
        return sum(type(thing) is RequestState for thing in gc.get_objects())

    before = num_kept()
    engine = make_engine(policy(), max_num_seqs=1)
    engine.add_request(make_request("long", 4, 40))
    engine.step()
    for i in range(600):
        engine.add_request(make_request(f"r{i}", 4, 3, client=f"c{i % 7}"))
    for i in range(590):
        engine.abort_request(f"r{i}")
    engine.step()
    assert num_kept() - before < 100
    ended = Run(engine).to_end()
    assert {f"r{i}" for i in range(590, 600)} <= set(ended.outputs)


def test_a_request_ended_while_it_was_given_up_counts_what_it_keeps() -> None:
    engine = make_engine(UrgentPreempts(), max_num_seqs=1)
    engine.add_request(make_request("slow", 8, 20, priority=5))
    ended = Run(engine)
    for _ in range(6):
        ended.step()
    engine.add_request(make_request("urgent", 8, 3, priority=0))
    ended.step()
    assert engine.finish_request("slow", 2, FinishReason.STOP)
    outputs = ended.to_end().outputs
    assert outputs["slow"].num_preemptions == 1
    assert len(outputs["slow"].token_ids) == 2
    assert engine.scheduler.counters.num_output_tokens == 5


def test_B017_who_was_given_up_comes_before_who_never_started() -> None:
    """Of equal keys, though the other one arrived earlier."""
    engine = make_engine(UrgentPreempts(), max_num_seqs=1)
    engine.add_request(make_request("slow", 8, 12, priority=5, arrival=3.0))
    ended = Run(engine)
    for _ in range(4):
        ended.step()
    engine.add_request(make_request("waits", 8, 3, priority=5, arrival=0.0))
    engine.add_request(make_request("urgent", 8, 3, priority=0))
    assert list(ended.to_end().outputs) == ["urgent", "slow", "waits"]
    assert ended.outputs["slow"].num_preemptions == 1


def test_many_aborts_leave_the_order_of_the_others() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add_request(make_request("long", 4, 9, arrival=0.0))
    engine.step()
    order = np.random.default_rng(0).permutation(300).tolist()
    for place in order:
        engine.add_request(make_request(f"r{place}", 3, 1, arrival=1.0 + place))
    for place in order[:240]:
        engine.abort_request(f"r{place}")
    aborted = {f"r{place}" for place in order[:240]}
    served = [name for name in Run(engine).to_end().outputs if name not in aborted]
    assert served == ["long", *(f"r{place}" for place in sorted(order[240:]))]
