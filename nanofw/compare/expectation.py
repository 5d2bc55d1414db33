"""A shape that a result must have."""

from __future__ import annotations

from nanofw.compare.statistics import Verdict
from nanofw.config.schema import Section


class Expectation(Section):
    """A condition on the result; if it does not hold, `nanofw compare` ends with exit code 1."""

    metric: str
    """The metric that is checked."""
    arm: str
    """The arm whose value is checked."""
    load: float | None = None
    """One of `loads` or `rates`; null: all of them."""
    against: str | None = None
    """The other arm; null: the baseline."""
    against_metric: str | None = None
    """The other arm's metric; null: the same one."""
    min_ratio: float | None = None
    """Least value of the ratio metric(arm) / metric(against). Like the effect, it is the geometric
    mean of the ratios of the runs. If a value is 0, it is the ratio of the means."""
    max_ratio: float | None = None
    """Greatest value of this ratio."""
    min_difference: float | None = None
    """Smallest allowed difference between the mean over runs of metric(arm) and that of
    metric(against)."""
    max_difference: float | None = None
    """Greatest value of this difference."""
    verdict: Verdict | None = None
    """The verdict that the statistics must give (against the baseline)."""
    why: str = ""
    """Where this expectation comes from, for example a paper."""
