"""How latency and goodput grow with the load, and where they turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.compare.rate_search import Probe, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What runs at one rate came to: `values` are means over runs, by metric."""

    rate: float
    num_runs: int
    values: Mapping[str, float]


def curve(
    known: Mapping[Probe, Values], rates: Sequence[float], metrics: Sequence[str]
) -> list[CurvePoint]:
    """The points at these rates, by all runs there."""
    points: list[CurvePoint] = []
    for rate in rates:
        runs = [values for (other, _), values in sorted(known.items()) if other == rate]
        means = {name: _mean([run[name] for run in runs]) for name in metrics}
        points.append(CurvePoint(rate=rate, num_runs=len(runs), values=means))
    return points


def knee(points: Sequence[CurvePoint], metric: str) -> float | None:
    """The rate from which on a metric rises faster than on the whole way.

    With rates and values scaled to 0..1 it is the point farthest below the straight line from
    the first point to the last (Satopaa and others, "Finding a Kneedle in a Haystack", 2011).
    None: fewer than four points, or it does not rise.
    """
    known = [(point.rate, point.values[metric]) for point in points]
    known = [(rate, value) for rate, value in known if math.isfinite(value)]
    if len(known) < 4:
        return None
    rates, values = np.array(known).T
    if values[-1] <= values[0]:
        return None
    below = (rates - rates[0]) / np.ptp(rates) - (values - values[0]) / (values[-1] - values[0])
    return float(rates[int(below.argmax())]) if below.max() > 0.05 else None


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan
