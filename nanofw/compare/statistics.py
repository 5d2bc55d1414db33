"""How sure a difference is. The unit is the run: one paired difference per seed.

Runs of two arms with the same seed get the same traffic, so their difference is free of what
the traffic does to both. Latencies and rates are compared by the logarithm of the ratio, shares
and counts by the difference; the interval is Student's t over the paired differences.
"""

# scipy does not state its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from nanofw.contracts.arrays import FloatArray

Verdict = Literal["better", "worse", "negligible", "no evidence"]
POWER = 0.8
"""Chance with which the smallest detectable effect is found."""
LARGEST_LOG = 700.0
"""Ratios above e to this are not told apart."""
MIN_RUNS = 3
"""Fewer paired runs give no verdict."""
MIN_STRETCHES = 10
"""A run of fewer stretches that do not remember each other does not know its own mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One arm against the baseline, in one metric.

    Attributes:
        scale: `ratio` or `difference`; the other fields are on it, a ratio of 1 or a difference
            of 0 being none.
        estimate, low, high: mean effect and its confidence interval; NaN with fewer than 2 runs.
        p_value: of no effect; 1 where all runs agree exactly.
        detectable: smallest effect (above 1 or 0) that this number of runs finds with `POWER`.
        margin: effects up to here (above 1 or 0), either way, do not matter; None: all matter.
        half_width: half of the interval as a share of the baseline's value; NaN where unknown.
    """

    scale: Literal["ratio", "difference"]
    num_runs: int
    estimate: float
    low: float
    high: float
    p_value: float
    detectable: float
    margin: float | None = None
    half_width: float = math.nan

    @property
    def is_negligible(self) -> bool:
        """Whether the whole interval lies within the margin (two one-sided tests, Schuirmann
        1987, each at half of the interval's alpha)."""
        if self.margin is None:
            return False
        lowest = 1 / self.margin if self.scale == "ratio" else -self.margin
        return lowest <= self.low and self.high <= self.margin


def paired_effect(
    base: Sequence[float],
    other: Sequence[float],
    *,
    by_ratio: bool,
    alpha: float,
    margin: float = 0.0,
    num_verdicts: int = 1,
    share: float = 1.0,
) -> Effect:
    """The effect of `other` against `base`, run by run in the same order.

    Pairs with an undefined value are left out. A ratio needs positive values; where a zero
    occurs the arms are compared by difference.

    Args:
        margin: the largest effect that does not matter, as a share of the base (of its mean,
            where arms are compared by difference); 0: every effect matters.
        num_verdicts: of the family that this is one of: `detectable` is what Holm's correction
            lets through whatever the others are, so at `alpha / num_verdicts`.
        share: of alpha that may be spent here, where the runs are looked at several times: the
            interval is that much wider and the p-value that much greater.
    """
    a, b = np.asarray(base, float), np.asarray(other, float)
    defined = np.isfinite(a) & np.isfinite(b)
    a, b = a[defined], b[defined]
    by_ratio = by_ratio and bool((a > 0).all() and (b > 0).all())
    differences = np.log(b) - np.log(a) if by_ratio else b - a
    effect = _effect(differences, by_ratio, alpha * share, alpha * share / num_verdicts)
    if not len(a):
        return effect
    size = 1.0 if by_ratio else abs(float(a.mean()))
    return replace(
        effect,
        p_value=min(1.0, effect.p_value / share),
        margin=size * margin + by_ratio if margin else None,
        half_width=_half_width(effect, size),
    )


def _half_width(effect: Effect, size: float) -> float:
    """Half of the interval as a share of `size`; of a ratio, the factor to either end less 1."""
    if effect.scale == "ratio":
        return math.sqrt(effect.high / effect.low) - 1 if effect.low else math.inf
    half = (effect.high - effect.low) / 2
    return half / size if size else (half and math.inf)


def _effect(differences: FloatArray, by_ratio: bool, alpha: float, strictest: float) -> Effect:
    from scipy import stats

    num, none = len(differences), math.nan
    mean = float(differences.mean()) if num else none
    low, high, p_value, detectable = none, none, 1.0, none
    if num >= 2:
        error = float(differences.std(ddof=1)) / math.sqrt(num)
        half = float(stats.t.ppf(1 - alpha / 2, num - 1)) * error
        low, high = mean - half, mean + half
        p_value = _p_value(mean, error, num)
        detectable = detectable_effect(error * math.sqrt(num), num, strictest)
    on_scale = _ratio if by_ratio else float
    return Effect(
        scale="ratio" if by_ratio else "difference",
        num_runs=num,
        estimate=on_scale(mean),
        low=on_scale(low),
        high=on_scale(high),
        p_value=p_value,
        detectable=on_scale(detectable),
    )


def _ratio(log: float) -> float:
    return math.exp(min(log, LARGEST_LOG))


def _p_value(mean: float, error: float, num: int) -> float:
    from scipy import stats

    if error == 0:  # the same difference in every run: it is zero, or certain
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stats.t.sf(abs(mean) / error, num - 1))


def detectable_effect(spread: float, num: int, alpha: float) -> float:
    """Smallest mean difference that `num` pairs with that standard deviation find."""
    return _detectable_size(num, alpha) * spread if spread else 0.0


@lru_cache(maxsize=1000)
def _detectable_size(num: int, alpha: float) -> float:
    """The same in standard deviations: all effects of an experiment ask for a few of them."""
    from statsmodels.stats.power import TTestPower

    size: Any = TTestPower().solve_power(nobs=num, alpha=alpha, power=POWER)
    return float(np.squeeze(size))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979), in their order.

    That of statsmodels collects the process's garbage at each call, for up to 0.3 s.
    """
    adjusted, greatest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = greatest
    return adjusted


def verdict(effect: Effect, p_adjusted: float, *, higher_is_better: bool, alpha: float) -> Verdict:
    """`better` or `worse` when no effect can be excluded at `alpha`, else `no evidence`; but
    `negligible` when an effect that would matter can be excluded."""
    if effect.num_runs < MIN_RUNS:
        return "no evidence"
    if effect.is_negligible:
        return "negligible"
    if not p_adjusted < alpha:
        return "no evidence"
    none = 1.0 if effect.scale == "ratio" else 0.0
    return "better" if (effect.estimate > none) == higher_is_better else "worse"


def rule(
    alpha: float,
    corrected: bool,
    num_verdicts: int,
    margin: float = 0.0,
    looks: Sequence[int] = (),
) -> str:
    """The verdict's rule in words, for reports."""
    family = f"{num_verdicts} verdict{'s' if num_verdicts != 1 else ''}"
    correction = f" after Holm's correction for {family}" if corrected else ""
    small = (
        f"negligible: the {1 - alpha:.0%} interval is within {100 * margin:g}% of the baseline; "
    )
    return (
        f"{small if margin else ''}better or worse: two-sided paired t-test over runs, "
        f"p < {alpha:g}{correction}; at least {MIN_RUNS} runs; else no evidence{_looks_text(looks)}"
    )


def _looks_text(looks: Sequence[int]) -> str:
    if len(looks) < 2:
        return ""
    first = ", ".join(map(str, looks[:-1]))
    return (
        f"; looks after {first} and {looks[-1]} runs, alpha spent in proportion to the runs: "
        "intervals and p-values hold whichever look is the last"
    )


def autocorrelation_length(values: FloatArray) -> int:
    """Requests after which a sequence has forgotten itself: lag of autocorrelation below 0.05."""
    centred = values - values.mean()
    num = len(centred)
    if num < 4 or not centred.any():
        return 1
    size = 1 << (2 * num - 1).bit_length()
    power = np.abs(np.fft.rfft(centred, size)) ** 2
    correlation = np.fft.irfft(power, size)[: num // 2]
    small = np.flatnonzero(correlation < 0.05 * correlation[0])
    return int(small[0]) if len(small) else num // 2


def within_run_interval(values: FloatArray, *, alpha: float) -> tuple[float, float]:
    """Interval of one run's mean, by Student's t over the means of batches.

    Neighbours in a queue are alike: batches are several times as long as their correlation
    lasts. It says how well one run knows its own mean, and nothing of other traffic: no verdict
    uses it.

    Args:
        values: float64[n], in order of arrival.

    Returns:
        NaN where the run is too short to know its own mean: fewer than `MIN_STRETCHES`.
    """
    from scipy import stats

    if len(values) < MIN_STRETCHES:
        return math.nan, math.nan
    memory = autocorrelation_length(values)
    if num_stretches(len(values), memory) < MIN_STRETCHES:
        return math.nan, math.nan
    num_batches = min(MIN_STRETCHES, len(values))
    means = np.array([batch.mean() for batch in np.array_split(values, num_batches)])
    error = float(means.std(ddof=1)) / math.sqrt(num_batches)
    half = float(stats.t.ppf(1 - alpha / 2, num_batches - 1)) * error
    mean = float(values.mean())
    return mean - half, mean + half


def num_stretches(num: int, memory: int) -> float:
    """How many times a sequence of `num` requests is as long as twice its memory."""
    return num / (2 * max(memory, 1))
