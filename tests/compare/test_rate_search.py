"""The largest rate at which objectives hold, on queues whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from nanofw.compare.load_curve import CurvePoint, knee
from nanofw.compare.objective import Objective
from nanofw.compare.rate_search import Probe, SustainedRate, Values, search

SERVICE = 0.1
"""Mean seconds of service."""


def found(asks: object, evaluate: Callable[[float, int], Values]) -> SustainedRate:
    """Carry a search out."""
    generator: object = asks
    answers: Mapping[Probe, Values] | None = None
    while True:
        try:
            probes = generator.send(answers)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        answers = {probe: evaluate(*probe) for probe in probes}


def queue(lengths: np.ndarray, num_jobs: int, seed: int) -> Callable[[float, int], Values]:
    """A first-come queue; waits by Lindley's recursion, the first and last tenth cut."""

    def evaluate(rate: float, number: int) -> Values:
        rng = np.random.default_rng([seed, number])
        gaps = rng.exponential(1.0, num_jobs) / rate
        service = rng.choice(lengths, num_jobs)
        steps = np.concatenate([[0.0], (service[:-1] - gaps[1:])]).cumsum()
        waits = steps - np.minimum.accumulate(steps)
        inside = waits[num_jobs // 10 : -num_jobs // 10]
        return {"queue.mean": float(inside.mean()), "goodput.share": float((inside < 0.5).mean())}

    return evaluate


def known_rate(lengths: np.ndarray, limit: float) -> float:
    """Of M/G/1 under a limit on the mean wait, by Pollaczek and Khinchine."""
    first, second = float(lengths.mean()), float((lengths**2).mean())
    return limit / (second / 2 + limit * first)


CASES = {
    "M/D/1": (np.array([SERVICE]), 0.2),
    "M/G/1": (np.array([0.04, 0.06, 0.1, 0.2]), 0.25),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_seeds", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_the_rate_of_a_known_queue_is_found(name: str, num_seeds: int) -> None:
    lengths, limit = CASES[name]
    expected = known_rate(lengths, limit)
    good = covered = 0
    for seed in range(num_seeds):
        asks = search(
            [Objective(metric="queue.mean", max=limit)], 1 / float(lengths.mean()),
            tolerance=0.01, max_seeds=100,
        )  # fmt: skip
        rate = found(asks, queue(lengths, 5000, seed))
        good += abs(rate.rate / expected - 1) <= 0.02
        covered += rate.low <= expected <= rate.high
        assert rate.high - rate.low <= 0.025 * rate.rate
        assert rate.binding == f"queue.mean at most {limit:g}"
    assert good >= 0.95 * num_seeds
    assert covered >= 0.85 * num_seeds


def smooth(rate: float, number: int) -> Values:
    """E2E of 1 / (10 - rate), and a share that falls from 1 at 4 to 0 at 8."""
    return {
        "e2e.mean": 1 / max(10 - rate, 1e-3),
        "goodput.share": min(1.0, max(0.0, (8 - rate) / 4)),
        "tpot.mean": 0.02,
    }


@pytest.mark.parametrize(
    ("objectives", "expected"),
    [
        ([Objective(metric="e2e.mean", max=0.5)], 8.0),
        ([Objective(metric="goodput.share", min=0.9)], 4.4),
        ([Objective(metric="e2e.mean", max=0.5), Objective(metric="goodput.share", min=0.5)], 6.0),
        ([Objective(metric="e2e.mean", max=0.11)], 10 - 1 / 0.11),
    ],
)
def test_the_first_objective_that_breaks_decides(
    objectives: list[Objective], expected: float
) -> None:
    asks = search(objectives, 10.0, tolerance=0.02, max_seeds=10)
    rate = found(asks, smooth)
    assert rate.rate == pytest.approx(expected, rel=0.005)
    assert rate.low <= rate.rate <= rate.high
    assert not rate.is_capacity
    assert rate.num_runs < 80


def test_objectives_that_hold_always_or_never() -> None:
    always = search([Objective(metric="tpot.mean", max=0.05)], 10.0, tolerance=0.02, max_seeds=10)
    rate = found(always, smooth)
    assert rate.is_capacity
    assert rate.rate == 10.0
    never = search([Objective(metric="tpot.mean", max=0.01)], 10.0, tolerance=0.02, max_seeds=10)
    rate = found(never, smooth)
    assert rate.rate == 0
    assert rate.binding == "tpot.mean at most 0.01"


def test_an_objective_needs_one_bound_on_the_right_side() -> None:
    def problems(**values: object) -> list[tuple[str, str]]:
        return list(Objective.model_validate(values).problems())

    assert problems(metric="e2e.p90", max=2) == []
    assert problems(metric="goodput.share", min=0.9) == []
    assert "needs one bound" in problems(metric="e2e.p90")[0][1]
    assert "from the good side" in problems(metric="e2e.p90", min=2)[0][1]
    assert "no metric" in problems(metric="e3e.p90", max=2)[0][1]


def test_the_knee_is_where_a_curve_turns() -> None:
    rates = [1, 2, 4, 6, 8, 9, 9.5, 9.8]
    points = [
        CurvePoint(rate=rate, num_runs=1, values={"e2e.mean": 1 / (10 - rate)}) for rate in rates
    ]
    assert knee(points, "e2e.mean") == 9
    flat = [CurvePoint(rate=rate, num_runs=1, values={"e2e.mean": rate}) for rate in rates]
    assert knee(flat, "e2e.mean") is None
    assert knee(points[:3], "e2e.mean") is None
    assert not math.isnan(points[0].values["e2e.mean"])
