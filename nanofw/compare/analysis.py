"""From runs to verdicts: effects of every arm in every metric, checks, expectations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nanofw.compare.comparability import SERVED_LESS, no_verdict
from nanofw.compare.expectation import Expectation
from nanofw.compare.experiment import AA
from nanofw.compare.harm import harms
from nanofw.compare.looks import Looks, effect_at, judged_metrics
from nanofw.compare.metrics import Metric
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.compare.run import RunResult
from nanofw.compare.statistics import holm, rule, verdict
from nanofw.compare.task import arm_at
from nanofw.compare.warnings import warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether an expectation was met, and the sentence that says so."""

    expectation: Expectation
    met: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Effects, verdicts, warnings and expectations of an experiment."""

    rows: tuple[ArmMetric, ...]
    rule: str
    warnings: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    def row(self, point: float | None, arm: str, metric: str) -> ArmMetric:
        """The row of an arm."""
        for row in self.rows:
            if (row.point, row.arm, row.metric) == (point, arm, metric):
                return row
        raise KeyError((point, arm, metric))


def analyse(results: Results) -> Analysis:
    """Effects and verdicts. With a primary metric only that one decides."""
    options = results.experiment.options
    judged = judged_metrics(options)
    others = len(results.experiment.arms) - 1
    num_verdicts = len(results.points) * others * len(set(judged))
    rows = [
        _row(results, point, arm, metric, num_verdicts if metric in judged and arm != AA else 1)
        for point in results.points
        for metric in options.all_metrics
        for arm in [*results.experiment.arms, *([AA] if options.aa else [])]
    ]
    deciding = [
        i
        for i, row in enumerate(rows)
        if row.effect is not None and row.arm != AA and row.metric in judged
    ]
    adjusted = holm([_p_value(rows[i]) for i in deciding])
    for i, p in zip(deciding, adjusted, strict=True):
        rows[i] = _decided(results, rows[i], p)
    controls = [
        i
        for i, row in enumerate(rows)
        if row.arm == AA and row.effect is not None and row.metric in judged
    ]
    family = holm([_p_value(rows[i]) for i in (*controls, *deciding)])
    for i, p in zip(controls, family, strict=False):
        rows[i] = _decided(results, rows[i], p)
    decided = Analysis(rows=tuple(rows), rule="", warnings=(), outcomes=())
    return Analysis(
        rows=tuple(rows),
        rule=rule(
            options.alpha,
            len(deciding) > 1,
            len(deciding),
            options.margin,
            Looks.planned(options).numbers,
        ),
        warnings=tuple(warnings(results, rows)),
        outcomes=tuple(
            _outcome(results, decided, item, point)
            for item in options.expect
            for point in ((item.load,) if item.load is not None else results.points)
        ),
    )


def _row(
    results: Results, point: float | None, arm: str, metric: str, num_verdicts: int
) -> ArmMetric:
    values = _values(results.runs[(point, arm)], metric)
    effect = None
    if arm != results.experiment.baseline:
        effect = effect_at(results, point, arm, metric, num_verdicts=num_verdicts)
    return ArmMetric(point=point, arm=arm, metric=metric, mean=_mean(values), effect=effect)


def _decided(results: Results, row: ArmMetric, p_adjusted: float) -> ArmMetric:
    assert row.effect is not None
    higher = Metric.parse(row.metric).higher_is_better
    alpha = results.experiment.options.alpha
    word = verdict(row.effect, p_adjusted, higher_is_better=higher, alpha=alpha)
    throughput = row.metric.startswith("throughput.")  # less served is worse in any case
    reason = no_verdict(results, row.point, row.arm, row.metric)
    if reason is not None and not (word == "worse" and reason in SERVED_LESS and throughput):
        word = "no evidence"
    found = harms(results, row.point, row.arm, row.metric) if word == "better" else []
    return replace(row, p_adjusted=p_adjusted, verdict=word, reason=reason, harms=tuple(found))


def _p_value(row: ArmMetric) -> float:
    assert row.effect is not None
    return row.effect.p_value


def _values(runs: list[RunResult], metric: str) -> list[float]:
    return [run.values[metric] for run in runs]


def _mean(values: list[float]) -> float:
    defined = [value for value in values if math.isfinite(value)]
    return float(np.mean(defined)) if defined else math.nan


# -- expectations -------------------------------------------------------------------------


def _outcome(
    results: Results, analysis: Analysis, item: Expectation, point: float | None
) -> Outcome:
    against = item.against or results.experiment.baseline
    other = item.against_metric or item.metric
    left = _values(results.runs[(point, item.arm)], item.metric)
    right = _values(results.runs[(point, against)], other)
    ours, theirs = _mean(left), _mean(right)
    ratio = _ratio(left, right)
    difference = ours - theirs
    complaints = [
        *_outside("ratio", ratio, item.min_ratio, item.max_ratio),
        *_outside("difference", difference, item.min_difference, item.max_difference),
    ]
    if item.verdict is not None:
        found = analysis.row(point, item.arm, item.metric).verdict
        if found != item.verdict:
            complaints.append(f"verdict {found}, expected {item.verdict}")
    name = "" if other == item.metric else f" {other}"
    text = (
        f"{arm_at(item.metric, point)}: {item.arm} {ours:.4g}, {against}{name} {theirs:.4g}, "
        f"ratio {ratio:.3g}"
    )
    if complaints:
        text += ": " + "; ".join(complaints)
    return Outcome(expectation=item, met=not complaints, text=text)


def _ratio(left: list[float], right: list[float]) -> float:
    """The geometric mean of the runs' ratios; of the means' where a value is 0."""
    defined = [(a, b) for a, b in zip(left, right, strict=True) if math.isfinite(a + b)]
    if defined and all(min(pair) > 0 for pair in defined):
        return math.exp(float(np.mean([math.log(a / b) for a, b in defined])))
    ours, theirs = _mean(left), _mean(right)
    if theirs or math.isnan(ours):
        return ours / (theirs or math.nan)
    return math.inf if ours else 1.0


def _outside(name: str, value: float, low: float | None, high: float | None) -> list[str]:
    found: list[str] = []
    if math.isnan(value) and (low, high) != (None, None):
        return [f"{name} undefined: an arm has no value"]
    if low is not None and not value >= low:
        found.append(f"{name} below {low:g}")
    if high is not None and not value <= high:
        found.append(f"{name} above {high:g}")
    return found
