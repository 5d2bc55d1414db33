"""From runs to verdicts: effects of every arm in every metric, checks, expectations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nanofw.compare.experiment import Expectation
from nanofw.compare.metrics import Metric
from nanofw.compare.run import RunResult
from nanofw.compare.runner import AA, Results, arm_at
from nanofw.compare.statistics import Effect, Verdict, holm, paired_effect, rule, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMetric:
    """One metric of one arm at one point.

    Attributes:
        mean: over the runs.
        effect: against the baseline; None for the baseline itself.
        p_adjusted, verdict: None where the metric does not decide.
    """

    point: float | None
    arm: str
    metric: str
    mean: float
    effect: Effect | None = None
    p_adjusted: float | None = None
    verdict: Verdict | None = None


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
    judged = (options.primary,) if options.primary else options.reported
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
    adjusted = holm([_p_value(rows[i]) for i in deciding], options.alpha)
    for i, p in zip(deciding, adjusted, strict=True):
        rows[i] = _decided(rows[i], p, options.alpha)
        is_of_served = Metric.parse(rows[i].metric).is_latency
        if is_of_served and _served_others(results, rows[i].point, rows[i].arm):
            rows[i] = replace(rows[i], verdict="no evidence")
    for i, row in enumerate(rows):
        if row.arm == AA and row.effect is not None and row.metric in judged:
            rows[i] = _decided(row, row.effect.p_value, options.alpha)
    decided = Analysis(rows=tuple(rows), rule="", warnings=(), outcomes=())
    return Analysis(
        rows=tuple(rows),
        rule=rule(options.alpha, len(deciding) > 1, len(deciding), options.margin),
        warnings=tuple(_warnings(results)),
        outcomes=tuple(
            _outcome(results, decided, item, point)
            for item in options.expect
            for point in ((item.load,) if item.load is not None else results.points)
        ),
    )


def _row(
    results: Results, point: float | None, arm: str, metric: str, num_verdicts: int
) -> ArmMetric:
    baseline = results.experiment.baseline
    values = _values(results.runs[(point, arm)], metric)
    effect = None
    if arm != baseline:
        effect = paired_effect(
            _values(results.runs[(point, baseline)], metric),
            values,
            by_ratio=Metric.parse(metric).by_ratio,
            alpha=results.experiment.options.alpha,
            margin=results.experiment.options.margin,
            num_verdicts=num_verdicts,
        )
    return ArmMetric(point=point, arm=arm, metric=metric, mean=_mean(values), effect=effect)


def _decided(row: ArmMetric, p_adjusted: float, alpha: float) -> ArmMetric:
    assert row.effect is not None
    higher = Metric.parse(row.metric).higher_is_better
    word = verdict(row.effect, p_adjusted, higher_is_better=higher, alpha=alpha)
    return replace(row, p_adjusted=p_adjusted, verdict=word)


def _served_others(results: Results, point: float | None, arm: str) -> int:
    """In how many runs an arm served other requests to their end than the baseline did."""
    if arm == AA:  # on traffic of its own
        return 0
    pairs = zip(results.runs[(point, results.experiment.baseline)], results.runs[(point, arm)],
                strict=True)  # fmt: skip
    return sum(a.served_checksum != b.served_checksum for a, b in pairs)


def _p_value(row: ArmMetric) -> float:
    assert row.effect is not None
    return row.effect.p_value


def _values(runs: list[RunResult], metric: str) -> list[float]:
    return [run.values[metric] for run in runs]


def _mean(values: list[float]) -> float:
    defined = [value for value in values if math.isfinite(value)]
    return float(np.mean(defined)) if defined else math.nan


# -- warnings -----------------------------------------------------------------------------


def _warnings(results: Results) -> list[str]:
    found: list[str] = []
    for (point, arm), runs in results.runs.items():
        where = arm_at(arm, point)
        num = len(runs)
        if overloaded := sum(run.overloaded for run in runs):
            found.append(
                f"{where}: the queue was still growing in {overloaded} of {num} runs: overload, "
                "and means depend on how long a run lasts"
            )
        if lagging := sum(run.lagging for run in runs):
            worst = max(run.lag_s for run in runs)
            found.append(
                f"{where}: the client was late in {lagging} of {num} runs (up to {worst:.3g} s): "
                "the load was not the one asked for"
            )
        found += [f"{where}: {note}" for note in dict.fromkeys(n for r in runs for n in r.notes)]
    return _unequal_features(results) + found + _unequal_work(results) + _few(results)


def _unequal_features(results: Results) -> list[str]:
    """Warn where `auto` resolved a feature differently for an arm than for the baseline."""
    baseline = results.experiment.baseline
    found: list[str] = []
    for arm, selection in results.selections.items():
        theirs = results.selections[baseline].explanation.features
        for feature, other in zip(selection.explanation.features, theirs, strict=True):
            if feature.value != other.value and "auto" in (feature.asked, other.asked):
                words = [("on" if item.value else "off") for item in (feature, other)]
                found.append(
                    f"{arm}: {feature.name} is {words[0]} ({feature.reason}), for {baseline} it "
                    f"is {words[1]}: some of the difference is that, not the policy's"
                )
    return found


def _unequal_work(results: Results) -> list[str]:
    """Arms must have done the same work: the same tokens for the same requests."""
    found: list[str] = []
    baseline = results.experiment.baseline
    for (point, arm), runs in results.runs.items():
        if arm in (baseline, AA):
            continue
        pairs = list(zip(results.runs[(point, baseline)], runs, strict=True))
        where = arm_at(arm, point)
        if others := _served_others(results, point, arm):
            ours, theirs = (sum(r.num_refused + r.num_failed for r in side) for side in
                            (runs, results.runs[(point, baseline)]))  # fmt: skip
            found.append(
                f"{where}: served other requests to their end than {baseline} in {others} of "
                f"{len(pairs)} runs ({ours} were refused or failed, with {baseline} {theirs}): "
                "latencies are of those that were served, so they get no verdict; goodput and "
                "throughput count all"
            )
        if counts := sum(a.num_output_tokens != b.num_output_tokens for a, b in pairs):
            found.append(
                f"{where}: made another number of tokens than {baseline} in {counts} of "
                f"{len(pairs)} runs: the work was not equal"
            )
        elif sums := sum(a.checksum != b.checksum for a, b in pairs):
            found.append(
                f"{where}: made other tokens than {baseline} in {sums} of {len(pairs)} runs: "
                "numerics depend on the batch, or requests depend on each other's timing"
            )
    return found


def _few(results: Results) -> list[str]:
    """A 99th percentile of few requests is the maximum of few."""
    metrics = results.experiment.options.all_metrics
    tails = [name for name in metrics if ".p99" in name and not name.startswith("itl.")]
    fewest = min(run.num_measured for runs in results.runs.values() for run in runs)
    if fewest < 30:
        return [f"only {fewest} requests were measured in a run"]
    if tails and fewest < 1000:
        return [f"{', '.join(tails)}: 99th percentiles of {fewest} requests a run; 1000 are needed"]
    return []


# -- expectations -------------------------------------------------------------------------


def _outcome(
    results: Results, analysis: Analysis, item: Expectation, point: float | None
) -> Outcome:
    against = item.against or results.experiment.baseline
    other = item.against_metric or item.metric
    ours = _mean(_values(results.runs[(point, item.arm)], item.metric))
    theirs = _mean(_values(results.runs[(point, against)], other))
    ratio = _ratio(ours, theirs)
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


def _ratio(ours: float, theirs: float) -> float:
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
