"""Host phases: all of a step is seen, and nothing is left behind."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nanofw.contracts.executor import Executor
from nanofw.measure.host_phases import STEP, SUBMIT, TOP_PHASES, PhaseTimes, seams, spans
from nanofw.measure.step_traces import record
from tests.engine.sim_engines import FirstCome, make_engine, make_request


@pytest.mark.parametrize("overlap", [False, True])
def test_phases_are_counted_and_fill_the_step(overlap: bool) -> None:
    engine = make_engine(FirstCome(), overlap=overlap)
    times, num_steps = PhaseTimes(), 0
    with times.watch(engine):
        for i in range(3):
            engine.add_request(make_request(f"r{i}", 4, max_tokens=3, ignore_eos=True))
        while engine.has_unfinished:
            num_steps += engine.step().report is not None
    assert times.calls["accept"] == 3
    assert times.calls["submit"] == times.calls["collect"] == times.calls["commit"] == num_steps
    assert times.calls["plan"] >= num_steps
    parts = sum(times.seconds[name] for name in TOP_PHASES)
    assert 0 < parts <= times.seconds[STEP]


def test_nothing_is_left_of_it() -> None:
    engine = make_engine(FirstCome())
    owners = {id(owner): owner for _, owner, _ in seams(engine)}
    before = {key: dict(vars(owner)) for key, owner in owners.items()}
    with suppress(RuntimeError), PhaseTimes().watch(engine):
        assert any(vars(owner).keys() != before[key].keys() for key, owner in owners.items())
        raise RuntimeError
    for key, owner in owners.items():
        assert vars(owner).keys() == before[key].keys()
    assert isinstance(engine.executor, Executor)


def test_parts_that_an_executor_names_are_seen() -> None:
    engine = make_engine(FirstCome())
    engine.executor.host_phases = {"look": (engine.executor, "capacity")}
    times = PhaseTimes()
    with times.watch(engine):
        engine.executor.capacity()
    assert times.calls == {SUBMIT + "look": 1}


def test_an_object_that_takes_no_attributes_is_passed_over() -> None:
    class Closed:
        __slots__ = ("inner",)

        def __init__(self, inner: Executor) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    engine = make_engine(FirstCome())
    engine.executor = Closed(engine.executor)
    times = PhaseTimes()
    with times.watch(engine):
        engine.add_request(make_request("r", 4, max_tokens=3))
        while engine.has_unfinished:
            engine.step()
    assert times.calls["plan"] > 0
    assert times.calls["submit"] == 0


def test_spans_are_in_the_trace() -> None:
    engine = make_engine(FirstCome())
    engine.add_request(make_request("r", 4, max_tokens=3))

    def run() -> None:
        while engine.has_unfinished:
            engine.step()

    with spans(engine):
        trace = record(run)
    names = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"}
    assert {"nanofw.step", "nanofw.plan", "nanofw.submit", "nanofw.commit"} <= names
