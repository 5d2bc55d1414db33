"""One line of a result: an arm in a metric."""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.compare.statistics import Effect, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMetric:
    """One metric of one arm at one point.

    Attributes:
        mean: over the runs.
        effect: against the baseline; None for the baseline itself.
        p_adjusted, verdict: None where the metric does not decide.
        reason: why there is no verdict though the metric decides, where there is a reason.
        harms: latencies of the arm that are worse, beside a verdict `better`.
    """

    point: float | None
    arm: str
    metric: str
    mean: float
    effect: Effect | None = None
    p_adjusted: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    harms: tuple[str, ...] = ()
