"""Observers of steps: what they hear, and that a failing one changes nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nanofw import Engine, ObserverError, StepObserver
from nanofw.contracts.observer import PHASES
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan, StepResult
from tests.engine.sim_engines import FirstCome, Run, make_engine, make_request


class Listener(StepObserver):
    """Notes what it hears."""

    phases = PHASES

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.open: list[str] = []
        self.closed: list[str] = []

    def submitted(self, plan: StepPlan, now: float) -> None:
        self.heard.append(("submitted", plan.step))

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        assert plan.step == result.step
        self.heard.append(("collected", plan.step))

    def finished(self, output: RequestOutput) -> None:
        self.heard.append(("finished", output.id))

    def began(self, phase: str) -> None:
        self.open.append(phase)

    def ended(self, phase: str) -> None:
        assert self.open.pop() == phase
        self.closed.append(phase)


def tokens(engine: Engine) -> dict[str, list[int]]:
    for i in range(4):
        engine.add_request(make_request(f"r{i}", 3 + i, max_tokens=5))
    return Run(engine).to_end().tokens()


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_and_ends_are_heard_in_their_order(overlap: bool) -> None:
    listener = Listener()
    engine = make_engine(FirstCome(), overlap=overlap)
    with engine.observed_by(listener):
        found = tokens(engine)
    steps = [step for what, step in listener.heard if what == "submitted"]
    assert steps == list(range(engine.stats()["num_steps"]))
    assert [step for what, step in listener.heard if what == "collected"] == steps
    assert {name for what, name in listener.heard if what == "finished"} == found.keys()
    assert not listener.open
    assert set(listener.closed) == set(PHASES) - {"provide"}
    before = list(listener.heard)
    assert tokens(make_engine(FirstCome(), overlap=overlap)) == found
    assert listener.heard == before, "it hears of its block alone"


class Failing(StepObserver):
    """Raises in one of its methods."""

    phases = ("plan",)

    def __init__(self, method: str, error: BaseException) -> None:
        self.calls = 0
        self._method, self._error = method, error

    def _fail(self, method: str) -> None:
        if method == self._method:
            self.calls += 1
            raise self._error

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._fail("submitted")

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self._fail("collected")

    def finished(self, output: RequestOutput) -> None:
        self._fail("finished")

    def began(self, phase: str) -> None:
        self._fail("began")

    def ended(self, phase: str) -> None:
        self._fail("ended")


@pytest.mark.parametrize("method", ["submitted", "collected", "finished", "began", "ended"])
@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit(0)])
def test_one_that_fails_is_named_and_loses_no_request(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tokens(make_engine(FirstCome(), overlap=True))
    failing, listener = Failing(method, error), Listener()
    engine = make_engine(FirstCome(), overlap=True)
    caplog.set_level(logging.ERROR)
    found = {}
    with (
        pytest.raises(ObserverError, match=rf"observer Failing: {method}\(\) raised"),
        engine.observed_by(failing, listener),
    ):
        found = tokens(engine)
    assert found == expected
    assert failing.calls == 1, "it is told nothing more"
    assert len([1 for what, _ in listener.heard if what == "finished"]) == len(expected)
    assert "observer Failing" in caplog.text
    assert tokens(engine).keys() == expected.keys(), "the engine goes on"


def test_what_is_no_observer_is_refused() -> None:
    class Ticks(StepObserver):
        phases = ("tick",)

    engine: Any = make_engine(FirstCome())
    with pytest.raises(ObserverError, match="object does not derive"), engine.observed_by(object()):
        pass
    with pytest.raises(ObserverError, match="names 'tick'; there are accept"), \
            engine.observed_by(Ticks()):  # fmt: skip
        pass
    assert tokens(engine)


def test_without_observers_calls_are_the_engines_own() -> None:
    engine = make_engine(FirstCome())
    assert engine._submit is Engine._submit_plan
    assert engine._observers.submitted == engine._observers.collected == ()
