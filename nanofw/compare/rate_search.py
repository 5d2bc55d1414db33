"""The largest rate at which objectives hold: a search that spends runs near that rate.

Runs of one seed get the same traffic at every rate, stretched in time, so that a metric's mean
over some seeds rises smoothly with the rate. First two seeds bracket the rate, then a false
position narrows the bracket; last, more and more seeds are run at three rates around the
crossing, until its interval (jackknife over seeds, Student's t) is narrow enough.
"""

# scipy does not state its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from nanofw.compare.objective import Objective
from nanofw.errors import ConfigError

Probe: TypeAlias = tuple[float, int]
"""A rate, and the number of a seed."""
Values: TypeAlias = Mapping[str, float]
"""Metrics of a run."""
R = TypeVar("R")
Asking: TypeAlias = Generator[list[Probe], Mapping[Probe, Values], R]
"""Asks for runs, is sent what they came to, returns a result."""

BRACKET_SEEDS, MIN_SEEDS = 2, 8
NARROW = 1.08
"""A bracket of this ratio is handed on to the last part."""
SPACING = 0.03
"""Of the three rates, as a share."""
ALPHA = 0.035
"""At which intervals are computed, to miss at most 5%: the search stops when an interval is narrow,
so more often at one that is narrow by chance. At 0.05, up to 6.5% miss where values are normal."""
FLOOR = 1e-3
"""As a share of the capacity; where an objective does not even hold there, it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRate:
    """The largest rate at which all objectives hold.

    Attributes:
        rate, low, high: requests per second, and a 95% interval; 0 where they hold at no rate.
        binding: the objective that breaks first, in words.
        is_capacity: the objectives hold up to the rate that the arm can serve at all. Beyond it
            queues grow for ever, so that only the length of the runs decides what holds.
        num_runs: done in the search.
    """

    rate: float
    low: float
    high: float
    binding: str
    is_capacity: bool = False
    num_runs: int = 0


def search(
    objectives: Sequence[Objective],
    capacity: float,
    *,
    tolerance: float,
    max_seeds: int,
    known: dict[Probe, Values] | None = None,
) -> Asking[SustainedRate]:
    """Search the largest rate.

    Args:
        capacity: requests per second that can be served at all; nothing is looked for above it.
        tolerance: half of the interval's width that is enough, as a share of the rate.
        max_seeds: most seeds at one rate.
        known: runs that were done; those of the search are added.
    """
    return _Search(objectives, capacity, tolerance, max_seeds, known).run()


class _Search:
    def __init__(
        self,
        objectives: Sequence[Objective],
        capacity: float,
        tolerance: float,
        max_seeds: int,
        known: dict[Probe, Values] | None,
    ) -> None:
        self._objectives, self._capacity = objectives, capacity
        self._tolerance, self._max_seeds = tolerance, max_seeds
        self._known: dict[Probe, Values] = {} if known is None else known
        self._num_runs = 0

    def run(self) -> Asking[SustainedRate]:
        low, high = yield from self._bracket()
        if high is None:
            return self._found(self._capacity, self._capacity, self._capacity, is_capacity=True)
        if low is None:
            return self._found(0.0, 0.0, FLOOR * self._capacity)
        seeds = range(BRACKET_SEEDS)
        while high / low > NARROW:
            margin = (high / low) ** 0.1  # a crossing at an end would not narrow it
            rate = self._crossing((low, high), seeds)
            rate = min(max(rate, low * margin), high / margin)
            yield from self._ask([rate], seeds)
            if self._holds(rate, seeds):
                low = rate
            else:
                high = rate
        return (yield from self._settle(self._crossing((low, high), seeds)))

    def _bracket(self) -> Asking[tuple[float | None, float | None]]:
        """A rate at which all objectives hold, and one at which they do not."""
        seeds, rate = range(BRACKET_SEEDS), 0.7 * self._capacity
        low: float | None = None
        high: float | None = None
        while low is None or high is None:
            yield from self._ask([rate], seeds)
            if self._holds(rate, seeds):
                low = rate
                if high is None and rate >= self._capacity:
                    return low, None
                rate = min(rate * 1.2, self._capacity)
            else:
                high = rate
                rate /= 1.5
                if low is None and rate < FLOOR * self._capacity:
                    return None, high
        return low, high

    def _settle(self, root: float) -> Asking[SustainedRate]:
        """Narrow the interval with more seeds at three rates around the crossing."""
        num, rates = min(MIN_SEEDS, self._max_seeds), _around(root)
        while True:
            yield from self._ask(rates, range(num))
            for _ in range(4):  # more seeds may move the crossing out of the three rates
                root = self._crossing(rates, range(num))
                if rates[0] <= root <= rates[-1] or root > self._capacity:
                    break
                rates = _around(min(max(root, rates[0] / 1.1), rates[-1] * 1.1))
                yield from self._ask(rates, range(num))
            low, high = self._interval(rates, num, root)
            if high - low <= 2 * self._tolerance * root or num >= self._max_seeds:
                break
            num = min(self._max_seeds, num + max(4, num // 2))
        if root >= self._capacity:
            return self._found(self._capacity, low, self._capacity, is_capacity=True)
        return self._found(root, low, min(high, self._capacity))

    def _interval(self, rates: Sequence[float], num: int, root: float) -> tuple[float, float]:
        """95% interval of the crossing: leave out one seed after the other."""
        from scipy import stats

        if num < 3:
            return 0.0, math.inf
        seeds = list(range(num))
        others = [self._crossing(rates, seeds[:i] + seeds[i + 1 :]) for i in seeds]
        pseudo = num * root - (num - 1) * np.array(others)
        half = (
            float(stats.t.ppf(1 - ALPHA / 2, num - 1)) * float(pseudo.std(ddof=1)) / math.sqrt(num)
        )
        return max(0.0, root - half), root + half

    def _ask(self, rates: Iterable[float], seeds: Iterable[int]) -> Asking[None]:
        wanted = [
            (rate, seed) for rate in rates for seed in seeds if (rate, seed) not in self._known
        ]
        if wanted:
            self._num_runs += len(wanted)
            self._known.update((yield wanted))

    def _holds(self, rate: float, seeds: Iterable[int]) -> bool:
        return max(self._excesses(rate, seeds)) <= 0

    def _excesses(self, rate: float, seeds: Iterable[int]) -> list[float]:
        """By objective, how far the mean over seeds is beyond its bound."""
        runs = [self._known[rate, seed] for seed in seeds]
        return [
            objective.excess(_mean(runs, objective.metric, rate)) for objective in self._objectives
        ]

    def _crossing(self, rates: Sequence[float], seeds: Sequence[int]) -> float:
        """Where the first objective breaks, between the rates or near them."""
        places = [math.log(rate) for rate in rates]
        excesses = [self._excesses(rate, seeds) for rate in rates]
        found = [_zero(places, [row[i] for row in excesses]) for i in range(len(self._objectives))]
        return math.exp(min(found))

    def _found(
        self, rate: float, low: float, high: float, *, is_capacity: bool = False
    ) -> SustainedRate:
        return SustainedRate(
            rate=rate,
            low=low,
            high=high,
            binding="" if is_capacity else self._binding(rate),
            is_capacity=is_capacity,
            num_runs=self._num_runs,
        )

    def _binding(self, rate: float) -> str:
        """The objective that is nearest to its bound, or beyond it, at the tried rate next to."""
        tried = min((probe[0] for probe in self._known), key=lambda other: abs(other - rate))
        seeds = [seed for other, seed in self._known if other == tried]
        excesses = self._excesses(tried, seeds)
        return self._objectives[excesses.index(max(excesses))].text()


def _around(rate: float) -> tuple[float, float, float]:
    return rate * (1 - SPACING), rate, rate * (1 + SPACING)


def _mean(runs: Sequence[Values], metric: str, rate: float) -> float:
    mean = float(np.mean([run[metric] for run in runs]))
    if math.isnan(mean):
        raise ConfigError(
            f"{metric} is undefined in a run at {rate:.4g} requests/s, so that it cannot be an "
            "objective; are there requests of that kind in every run?",
            key="objectives",
        )
    return mean


def _zero(places: Sequence[float], values: Sequence[float]) -> float:
    """Where a rising line through the points crosses 0, along the last or first piece outside."""
    for i in range(len(places) - 1):
        if values[i] <= 0 < values[i + 1]:
            return _cross(places, values, i)
    last = len(places) - 2
    at = last if values[-1] <= 0 else 0
    if values[at + 1] <= values[at]:  # it does not rise here: look further on
        step = places[-1] - places[0]
        return places[-1] + step if values[-1] <= 0 else places[0] - step
    return _cross(places, values, at)


def _cross(places: Sequence[float], values: Sequence[float], i: int) -> float:
    slope = (values[i + 1] - values[i]) / (places[i + 1] - places[i])
    return places[i] - values[i] / slope
