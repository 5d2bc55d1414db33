"""Verdicts: how often they are wrong where nothing differs, and whether they find what does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nanofw.compare.statistics import (
    Effect,
    autocorrelation_length,
    detectable_effect,
    holm,
    paired_effect,
    rule,
    verdict,
    within_run_interval,
)


def effect(base: list[float], other: list[float], by_ratio: bool = True) -> Effect:
    return paired_effect(base, other, by_ratio=by_ratio, alpha=0.05)


def test_ratio_and_its_interval() -> None:
    found = effect([1.0, 2.0, 4.0, 8.0], [1.1, 2.3, 4.2, 9.0])
    logs = np.log([1.1, 1.15, 1.05, 1.125])
    half = 3.18245 * logs.std(ddof=1) / 2
    assert found.scale == "ratio"
    assert found.estimate == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(logs.mean() - half), rel=1e-5)
    assert found.high == pytest.approx(math.exp(logs.mean() + half), rel=1e-5)


def test_zero_makes_it_a_difference() -> None:
    found = effect([0.0, 1.0, 2.0], [0.5, 1.5, 2.5])
    assert (found.scale, found.estimate, found.p_value) == ("difference", 0.5, 0.0)


def test_undefined_pairs_are_left_out() -> None:
    assert effect([1.0, math.nan, 2.0], [1.0, 3.0, 2.0]).num_runs == 2
    nothing = effect([math.nan], [1.0])
    assert nothing.num_runs == 0
    assert math.isnan(nothing.estimate)


def test_equal_runs_are_no_evidence() -> None:
    same = effect([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.p_value, same.low, same.high) == (1.0, 1.0, 1.0)
    assert verdict(same, same.p_value, higher_is_better=False, alpha=0.05) == "no evidence"


def judged(base: list[float], other: list[float], margin: float, by_ratio: bool = True) -> str:
    found = paired_effect(base, other, by_ratio=by_ratio, alpha=0.05, margin=margin)
    return verdict(found, found.p_value, higher_is_better=False, alpha=0.05)


@pytest.mark.parametrize(
    ("factors", "margin", "expected"),
    [
        ([1.0001, 1.0001, 1.0001], 0.001, "negligible"),  # sure, and too small to matter
        ([1.0001, 1.0001, 1.0001], 0.0, "worse"),  # unless somebody says that it matters
        ([1.0001, 1.00011, 1.00009], 0.001, "negligible"),
        ([0.9999, 1.0001, 1.0], 0.001, "negligible"),  # not even sure, but surely small
        ([1 + 1e-15, 1 + 2e-15, 1 + 1e-15], 0.001, "negligible"),  # rounding
        ([1.002, 1.0021, 1.0019], 0.001, "worse"),
        ([0.998, 0.9981, 0.9979], 0.001, "better"),
        ([1.0009, 1.0011, 1.0010], 0.001, "worse"),  # the interval reaches beyond the margin
        ([0.9, 1.1, 1.0], 0.001, "no evidence"),
        ([1.0001, 1.0001], 0.001, "no evidence"),  # too few runs
    ],
)
def test_what_is_within_the_margin_is_negligible(
    factors: list[float], margin: float, expected: str
) -> None:
    base = [1.0, 2.0, 3.0][: len(factors)]
    other = [a * b for a, b in zip(base, factors, strict=True)]
    assert judged(base, other, margin) == expected


def test_the_margin_of_a_difference_is_a_share_of_the_mean() -> None:
    assert judged([10.0, 0.0, 20.0], [10.001, 0.001, 20.001], 0.001) == "negligible"
    assert judged([10.0, 0.0, 20.0], [10.1, 0.1, 20.1], 0.001) == "worse"
    assert judged([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0.001) == "negligible"
    assert judged([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], 0.001) == "worse"


def test_an_effect_beyond_the_margin_is_rarely_called_negligible() -> None:
    rng = np.random.default_rng(3)
    wrong = sum(
        judged([1.0] * 10, list(np.exp(rng.normal(0.0101, 0.004, 10))), 0.01) == "negligible"
        for _ in range(1000)
    )
    assert wrong / 1000 < 0.05


def test_few_runs_give_no_verdict() -> None:
    sure = effect([1.0, 1.0], [2.0, 2.0])
    assert sure.p_value == 0.0
    assert verdict(sure, 0.0, higher_is_better=True, alpha=0.05) == "no evidence"


@pytest.mark.parametrize(
    ("other", "higher_is_better", "expected"),
    [(2.0, True, "better"), (2.0, False, "worse"), (0.5, False, "better"), (0.5, True, "worse")],
)
def test_directions(other: float, higher_is_better: bool, expected: str) -> None:
    found = effect([1.0, 1.1, 0.9], [other, other * 1.1, other * 0.9])
    assert verdict(found, found.p_value, higher_is_better=higher_is_better, alpha=0.05) == expected


def test_false_positives_are_as_rare_as_alpha_says() -> None:
    rng = np.random.default_rng(0)
    wrong = sum(
        effect(list(rng.lognormal(0, 0.3, 10)), list(rng.lognormal(0, 0.3, 10))).p_value < 0.05
        for _ in range(1000)
    )
    assert 0.03 < wrong / 1000 < 0.07


def test_a_margin_adds_no_false_positives() -> None:
    rng = np.random.default_rng(0)
    pairs = [(list(rng.lognormal(0, 0.3, 10)), list(rng.lognormal(0, 0.3, 10))) for _ in range(400)]
    without = sum(judged(*pair, 0.0) in ("better", "worse") for pair in pairs)
    assert sum(judged(*pair, 0.05) in ("better", "worse") for pair in pairs) <= without < 28


def test_the_detectable_effect_is_found_with_the_power_that_it_says() -> None:
    rng = np.random.default_rng(1)
    size = detectable_effect(0.2, 10, 0.05)
    found = sum(
        effect([1.0] * 10, list(np.exp(rng.normal(size, 0.2, 10)))).p_value < 0.05
        for _ in range(1000)
    )
    assert found / 1000 == pytest.approx(0.8, abs=0.05)


def test_holm_keeps_the_order_and_adjusts_the_smallest_most() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_holm_is_that_of_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    values = [*np.random.default_rng(4).beta(0.3, 1.0, 30), 0.01, 0.01, 1.0]
    corrected: Any = multipletests(values, method="holm")[1]
    assert holm(values) == pytest.approx(list(corrected))


def test_the_rule_is_written_out() -> None:
    assert "Holm's correction for 6 verdicts" in rule(0.05, True, 6)
    assert "Holm" not in rule(0.05, False, 1)
    assert "negligible: the 95% interval is within 0.1% of the base" in rule(0.05, False, 1, 0.001)
    assert "negligible" not in rule(0.05, False, 1)


class TestWithinRun:
    def _queue(self, num: int, seed: int, memory: float) -> np.ndarray:
        """An autoregressive sequence of mean 10 whose neighbours are alike."""
        level, values = 0.0, list[float]()
        for noise in np.random.default_rng(seed).standard_normal(num):
            level = memory * level + noise
            values.append(10 + level)
        return np.array(values)

    def test_memory_is_found(self) -> None:
        assert autocorrelation_length(self._queue(4000, 0, 0.0)) <= 3
        assert autocorrelation_length(self._queue(4000, 0, 0.95)) > 20
        assert autocorrelation_length(np.ones(50)) == 1

    @pytest.mark.parametrize("memory", [0.0, 0.9])
    def test_intervals_cover_although_neighbours_are_alike(self, memory: float) -> None:
        inside = 0
        for seed in range(150):
            low, high = within_run_interval(self._queue(2000, seed, memory), alpha=0.05)
            inside += low <= 10 <= high
        assert inside / 150 >= 0.86

    def test_one_value_has_no_interval(self) -> None:
        assert all(math.isnan(v) for v in within_run_interval(np.array([1.0]), alpha=0.05))
