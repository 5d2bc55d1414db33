"""Processes of arrivals: the times between requests of an open loop."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, PositiveFloat

from nanofw.contracts.arrays import FloatArray
from nanofw.plugins import Options


def poisson_gaps(rng: np.random.Generator, num: int, rate: float) -> FloatArray:
    """float64[num], seconds before each arrival, independent of each other."""
    return rng.exponential(1.0 / rate, num)


def gamma_gaps(rng: np.random.Generator, num: int, rate: float, cv: float) -> FloatArray:
    """The same with a standard deviation of `cv` times their mean."""
    shape = 1.0 / cv**2
    return rng.gamma(shape, 1.0 / (rate * shape), num)


def on_off_gaps(
    rng: np.random.Generator, num: int, rate: float, on_s: float, off_s: float
) -> FloatArray:
    """Poisson for `on_s`, silence for `off_s`, and again; `rate` is the mean over both."""
    busy = np.cumsum(rng.exponential(on_s / (rate * (on_s + off_s)), num))
    times = busy + np.floor(busy / on_s) * off_s
    return np.diff(times, prepend=0.0)


class _Process(Options):
    rate: PositiveFloat
    """Mean arrivals per second."""


class PoissonArrivals(_Process):
    """`{process: poisson, rate: 5.0}`."""

    process: Literal["poisson"]

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        return poisson_gaps(rng, num, self.rate)


class GammaArrivals(_Process):
    """`{process: gamma, rate: 5.0, cv: 2.0}`."""

    process: Literal["gamma"]
    cv: PositiveFloat = 2.0

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        return gamma_gaps(rng, num, self.rate, self.cv)


class OnOffArrivals(_Process):
    """`{process: on_off, rate: 5.0, on_s: 10.0, off_s: 10.0}`."""

    process: Literal["on_off"]
    on_s: PositiveFloat = 10.0
    off_s: PositiveFloat = 10.0

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        return on_off_gaps(rng, num, self.rate, self.on_s, self.off_s)


ArrivalProcess: TypeAlias = Annotated[
    PoissonArrivals | GammaArrivals | OnOffArrivals, Field(discriminator="process")
]
