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
    """`time` in seconds after the start, and the requests that are `waiting` and `running` then.

    A preempted request counts as running: when it waited again is not kept.
    """
    times = np.linspace(start, end, NUM_TIMES)
    began = np.where(np.isnan(done["scheduled"]), done["finished"], done["scheduled"])
    came, begun, ended = (
        np.searchsorted(np.sort(some), times, side="right")
        for some in (done["arrival"], began, done["finished"])
    )
    return {
        "time": (times - start).tolist(),
        "waiting": (came - begun).astype(float).tolist(),
        "running": (begun - ended).astype(float).tolist(),
    }
