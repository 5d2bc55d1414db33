"""Host phases: all of a step is seen, and nothing is left behind."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nanofw.contracts.executor import ExecutorFacts
from nanofw.measure.host_phases import STEP, SUBMIT, TOP_PHASES, PhaseTimes, spans
from nanofw.measure.step_traces import record
from nanofw.sim.executor import SimExecutor
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
    engine, times = make_engine(FirstCome()), PhaseTimes()
    before = dict(vars(engine))
    with suppress(RuntimeError), times.watch(engine):
        raise RuntimeError
    assert dict(vars(engine)) == before
    engine.add_request(make_request("r", 4, max_tokens=3))
    engine.step()
    assert not times.calls


def test_parts_that_an_executor_tells_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seconds = make_engine(FirstCome()), {"look": 3.0}
    monkeypatch.setattr(SimExecutor, "facts", lambda _: ExecutorFacts(host_phases=dict(seconds)))
    times = PhaseTimes()
    with times.watch(engine):
        seconds["look"] = 3.25
    assert times.seconds[SUBMIT + "look"] == 0.25


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
