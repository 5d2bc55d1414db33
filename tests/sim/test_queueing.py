"""The simulator against queueing theory: exact on every path, right in the mean."""

from __future__ import annotations

import numpy as np
import pytest

from nanofw.contracts.arrays import FloatArray, LongArray
from nanofw.schedulers.manifest import scheduler
from tests.sim.queues import TICK, lindley, mean_wait, serve, stationary_means, waits

LENGTHS = np.array([10, 20, 40, 250])
POLICIES = [plugin.name for plugin in scheduler()]


def seconds(ticks: LongArray) -> FloatArray:
    return (ticks * TICK).astype(np.float64)


def poisson(load: float, num: int, seed: int) -> tuple[FloatArray, LongArray]:
    rng = np.random.default_rng(seed)
    ticks = rng.choice(LENGTHS, num)
    rate = load / (float(LENGTHS.mean()) * TICK)
    return np.cumsum(rng.exponential(1 / rate, num)), ticks


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9, 1.2])
def test_every_wait_is_that_of_a_single_server_queue(load: float) -> None:
    arrivals, ticks = poisson(load, 300, seed=1)
    outputs = serve(arrivals, ticks)
    assert waits(outputs) == pytest.approx(lindley(arrivals, seconds(ticks)), abs=1e-9)
    assert [o.finished - (o.scheduled or 0.0) for o in outputs] == pytest.approx(ticks * TICK)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_moves_waits_but_not_the_work(policy: str) -> None:
    """Kleinrock's conservation law, on one path: the sum of service times waits is the same
    under every order that serves whenever there is work and never interrupts."""
    arrivals, ticks = poisson(0.9, 300, seed=2)
    expected = float(ticks @ lindley(arrivals, seconds(ticks)))
    outputs = serve(arrivals, ticks, policy)
    assert float(ticks @ waits(outputs)) == pytest.approx(expected)
    assert max(o.finished for o in outputs) == pytest.approx(_last_finish(arrivals, ticks))


def test_shortest_first_has_the_least_mean_wait() -> None:
    arrivals, ticks = poisson(0.9, 300, seed=3)
    means = {policy: waits(serve(arrivals, ticks, policy)).mean() for policy in POLICIES}
    assert means["shortest_job_first"] <= min(means.values()) + 1e-12


def test_the_mean_wait_is_pollaczek_khinchines() -> None:
    """Many short queues that start in their stationary state; `benchmarks/sim/queueing.py`
    counts how often such an interval covers, over 2,000 seeds."""
    starts = 150
    means = stationary_means(0.8, LENGTHS, starts, 4, seed=4)
    error = means.std(ddof=1) / np.sqrt(starts)
    assert abs(means.mean() - mean_wait(0.8, LENGTHS)) < 3.3 * error


def _last_finish(arrivals: FloatArray, ticks: LongArray) -> float:
    service = seconds(ticks)
    return float((arrivals + lindley(arrivals, service) + service).max())
