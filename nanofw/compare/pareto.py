"""Which arms no other arm beats in several metrics at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanofw.compare.metrics import Metric
from nanofw.compare.run import RunResult
from nanofw.compare.statistics import MIN_RUNS, paired_effect


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontArm:
    """An arm beside the others.

    Attributes:
        means: over its runs, by metric.
        beaten_by: an arm whose means are at least as good in every metric and better in one; None:
            the arm is on the front.
        is_sure: of every metric in which the two differ, a paired t-test over runs says so.
    """

    arm: str
    means: Mapping[str, float]
    beaten_by: str | None = None
    is_sure: bool = False


def front(
    runs: Mapping[str, Sequence[RunResult]], metrics: Sequence[str], *, alpha: float
) -> list[FrontArm]:
    """All arms at one point, those on the front first, by the first metric.

    An arm with an undefined mean is left out. Runs of two arms are paired by their order.
    """
    means = {
        arm: {name: _mean([run.values[name] for run in some]) for name in metrics}
        for arm, some in runs.items()
    }
    known = [arm for arm, values in means.items() if not any(map(math.isnan, values.values()))]
    found = [_beside(arm, known, means, runs, alpha) for arm in known]
    first = Metric.parse(metrics[0])
    sign = -1 if first.higher_is_better else 1
    return sorted(
        found, key=lambda item: (item.beaten_by is not None, sign * item.means[metrics[0]])
    )


def _beside(
    arm: str,
    others: Sequence[str],
    means: Mapping[str, Mapping[str, float]],
    runs: Mapping[str, Sequence[RunResult]],
    alpha: float,
) -> FrontArm:
    better = [other for other in others if _beats(means[other], means[arm])]
    metrics = [*means[arm]]
    sure = next(
        (other for other in better if _is_sure(runs[arm], runs[other], metrics, alpha)), None
    )
    beaten_by = sure or (better[0] if better else None)
    return FrontArm(arm=arm, means=means[arm], beaten_by=beaten_by, is_sure=sure is not None)


def _beats(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether the first is at least as good everywhere and better somewhere."""
    signs = {name: 1 if Metric.parse(name).higher_is_better else -1 for name in one}
    gains = [signs[name] * (one[name] - other[name]) for name in one]
    return min(gains) >= 0 and max(gains) > 0


def _is_sure(
    base: Sequence[RunResult], other: Sequence[RunResult], metrics: Sequence[str], alpha: float
) -> bool:
    for name in metrics:
        ours, theirs = [run.values[name] for run in base], [run.values[name] for run in other]
        if ours == theirs:
            continue
        by_ratio = Metric.parse(name).by_ratio
        effect = paired_effect(ours, theirs, by_ratio=by_ratio, alpha=alpha)
        if effect.num_runs < MIN_RUNS or effect.p_value >= alpha:
            return False
    return True


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
