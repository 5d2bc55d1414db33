"""Distributions of lengths, in tokens."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from nanofw.contracts.arrays import FloatArray, LongArray
from nanofw.plugins import Options

Tokens = Annotated[int, Field(ge=1, le=1 << 30)]


def chances(weights: FloatArray) -> FloatArray:
    """Weights as shares of 1: float64[n]. Their sum may be too large for a float."""
    return weights / weights.max() / (weights / weights.max()).sum()


class Fixed(Options):
    """Every length is `tokens`."""

    distribution: Literal["fixed"] = "fixed"
    tokens: Tokens

    def sample(self, rng: np.random.Generator, num: int) -> LongArray:
        return np.full(num, self.tokens, np.int64)


class Uniform(Options):
    """Every whole number from `low` to `high` with equal chance."""

    distribution: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _check(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, greater than high, {self.high}")
        return self

    def sample(self, rng: np.random.Generator, num: int) -> LongArray:
        return rng.integers(self.low, self.high, num, endpoint=True)


class LogNormal(Options):
    """The logarithm is normal with standard deviation `sigma`; cut to [`low`, `high`]."""

    distribution: Literal["lognormal"]
    median: PositiveFloat | None = None
    mean: PositiveFloat | None = None
    """Either this or the median, before the cut."""
    sigma: PositiveFloat = 1.0
    low: Tokens = 1
    high: Tokens | None = None

    @model_validator(mode="after")
    def _check(self) -> LogNormal:
        if (self.median is None) == (self.mean is None):
            raise ValueError("give either median or mean")
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low}, greater than high, {self.high}")
        return self

    def sample(self, rng: np.random.Generator, num: int) -> LongArray:
        if self.median is not None:
            mu = math.log(self.median)
        else:
            assert self.mean is not None
            mu = math.log(self.mean) - self.sigma**2 / 2
        lengths = np.rint(rng.lognormal(mu, self.sigma, num))
        return np.clip(lengths, self.low, self.high or 1 << 30).astype(np.int64)


class Empirical(Options):
    """One of `values`, sampled with replacement."""

    distribution: Literal["empirical"]
    values: Annotated[list[Tokens], Field(min_length=1)]

    def sample(self, rng: np.random.Generator, num: int) -> LongArray:
        return rng.choice(np.array(self.values, np.int64), num)


def _plain_number(value: object) -> object:
    """`512` is short for a fixed length."""
    return {"distribution": "fixed", "tokens": value} if isinstance(value, int) else value


Simple: TypeAlias = Annotated[
    Annotated[Fixed | Uniform | LogNormal | Empirical, Field(discriminator="distribution")],
    BeforeValidator(_plain_number),
]


class Part(Options):
    """One component of a mixture."""

    weight: PositiveFloat = 1.0
    length: Simple


class Mixture(Options):
    """Sampled from one of `parts`, chosen by weight."""

    distribution: Literal["mixture"]
    parts: Annotated[list[Part], Field(min_length=1)]

    def sample(self, rng: np.random.Generator, num: int) -> LongArray:
        weights = np.array([part.weight for part in self.parts])
        which = rng.choice(len(self.parts), num, p=chances(weights))
        sampled = np.stack([part.length.sample(rng, num) for part in self.parts])
        return sampled[which, np.arange(num)]


Lengths: TypeAlias = Annotated[
    Annotated[
        Fixed | Uniform | LogNormal | Empirical | Mixture, Field(discriminator="distribution")
    ],
    BeforeValidator(_plain_number),
]
"""An option: a number, or `{distribution: uniform, low: 1, high: 9}` and the like."""
