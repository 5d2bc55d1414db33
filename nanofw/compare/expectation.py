"""A shape that a result must have."""

from __future__ import annotations

from nanofw.compare.statistics import Verdict
from nanofw.config.schema import Section


class Expectation(Section):
    """A shape that the result must have; `nanofw compare` fails when it has not."""

    metric: str
    """What is looked at."""
    arm: str
    """Whose value it is."""
    load: float | None = None
    """One of `loads` or `rates`; null: all of them."""
    against: str | None = None
    """The other arm; null: the baseline."""
    against_metric: str | None = None
    """The other arm's metric; null: the same one."""
    min_ratio: float | None = None
    """Least value of metric(arm) / metric(against): the geometric mean of the runs' ratios, as
    the effect is; the ratio of the means where a value is 0."""
    max_ratio: float | None = None
    """Greatest value of it."""
    min_difference: float | None = None
    """Least value of metric(arm) - metric(against), means over runs."""
    max_difference: float | None = None
    """Greatest value of it."""
    verdict: Verdict | None = None
    """What the statistics must say (against the baseline)."""
    why: str = ""
    """Where the claim comes from."""
