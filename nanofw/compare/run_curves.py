"""What a run keeps for pictures: how latencies were spread, and who waited and ran over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nanofw.compare.finished import FinishedTable
from nanofw.contracts.arrays import FloatArray

PERCENTS = tuple(range(0, 101, 5))
"""Of the requests, at which their latencies are kept."""
SPREAD = ("ttft", "tpot", "e2e")
NUM_TIMES = 60


def spreads(latencies: Mapping[str, FloatArray]) -> dict[str, list[float]]:
    """Latencies at `PERCENTS`, by quantity; those that no request has are left out."""
    found: dict[str, list[float]] = {}
    for name in SPREAD:
        defined = latencies[name][np.isfinite(latencies[name])]
        if len(defined):
            found[name] = [float(value) for value in np.percentile(defined, PERCENTS)]
    return found


def over_time(done: FinishedTable, start: float, end: float) -> dict[str, list[float]]:
    """How many requests are `waiting` and `running`: means over stretches of equal length, by the
    `time` of their middles in seconds after the start.

    Means, since a queue that every step empties has another length at each moment. A preempted
    request counts as running: when it waited again is not kept.
    """
    edges = np.linspace(start, max(end, start + 1e-9), NUM_TIMES + 1)
    began = np.where(np.isnan(done["scheduled"]), done["finished"], done["scheduled"])
    came, begun, ended = (
        _means(np.sort(some), edges) for some in (done["arrival"], began, done["finished"])
    )
    return {
        "time": ((edges[1:] + edges[:-1]) / 2 - start).tolist(),
        "waiting": np.maximum(came - begun, 0.0).tolist(),
        "running": np.maximum(begun - ended, 0.0).tolist(),
    }


def _means(times: FloatArray, edges: FloatArray) -> FloatArray:
    """float64[e - 1]: how many of the sorted times have passed, on average between two edges."""
    num = np.searchsorted(times, edges)
    since = times - edges[0]
    area = num * (edges - edges[0]) - np.concatenate(([0.0], since.cumsum()))[num]
    return np.diff(area) / np.diff(edges)
