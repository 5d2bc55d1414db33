"""Bounds that a rate must keep."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nanofw.compare.metrics import Metric
from nanofw.config.schema import Section


class Objective(Section):
    """A bound on a metric's mean over runs: `min` or `max`."""

    metric: str
    """What is bounded, such as `ttft.p99` or `attainment`."""
    min: float | None = None
    """Least value."""
    max: float | None = None
    """Greatest value."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What does not fit together: the key that is wrong, and why."""
        try:
            metric = Metric.parse(self.metric)
        except ValueError as error:
            yield "metric", str(error)
            return
        if (self.min is None) == (self.max is None):
            yield "metric", f"{self.metric!r} needs one bound: min or max"
        elif (self.max is None) != metric.higher_is_better:
            wrong, right = ("max", "min") if metric.higher_is_better else ("min", "max")
            yield wrong, f"would bound {self.metric} from the good side; give {right}"
        elif metric.is_latency and (self.max or 0) <= 0:
            yield "max", "must be greater than 0 for a latency"

    def excess(self, value: float) -> float:
        """How far a value is beyond the bound: above 0 where it is broken, smooth around it."""
        if self.max is None:
            return (self.min or 0.0) - value
        if value > 0 and self.max > 0:
            return math.log(value / self.max)
        return value - self.max

    def text(self) -> str:
        """`e2e.p90 at most 2`."""
        bound = f"at most {self.max:g}" if self.max is not None else f"at least {self.min:g}"
        return f"{self.metric} {bound}"
