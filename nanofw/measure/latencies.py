"""Latencies of requests that were served, and statistics of them.

TTFT is the first token's time less the scheduled arrival, E2EL the end's, queue the first
admission's; TPOT is (E2EL - TTFT) / (tokens - 1), undefined for one token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.outputs import RequestOutput

PER_REQUEST = ("ttft", "tpot", "e2el", "queue")
STATISTICS: Mapping[str, Callable[[FloatArray], float]] = MappingProxyType(
    {
        "mean": lambda values: float(values.mean()),
        "max": lambda values: float(values.max()),
        **{
            f"p{percent}": lambda values, q=percent: float(np.percentile(values, q))
            for percent in (50, 90, 95, 99)
        },
    }
)


def request_latencies(outputs: Sequence[RequestOutput]) -> dict[str, FloatArray]:
    """float64[n] by `PER_REQUEST`; NaN where a request never got so far."""
    lines: list[tuple[float, ...]] = [
        (o.arrival, _time(o.scheduled), _time(o.first_token), o.finished, len(o.token_ids))
        for o in outputs
    ]
    return latencies(*np.array(lines, np.float64).reshape(-1, 5).T)


def latencies(
    arrival: FloatArray,
    scheduled: FloatArray,
    first: FloatArray,
    finished: FloatArray,
    tokens: FloatArray,
) -> dict[str, FloatArray]:
    """The same of float64[n] times and numbers of tokens; NaN for a time that never came."""
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens > 1, (finished - first) / (tokens - 1), np.nan)
    values: dict[str, FloatArray] = {
        "ttft": first - arrival,
        "tpot": tpot,
        "e2el": finished - arrival,
        "queue": scheduled - arrival,
    }
    assert tuple(values) == PER_REQUEST
    return values


def weighted_statistic(name: str, values: FloatArray, weights: FloatArray) -> float:
    """A statistic of values that occurred `weights` times each; NaN of none."""
    if not len(values):
        return float("nan")
    if name == "mean":
        return float((values * weights).sum()) / float(weights.sum())
    if name == "max":
        return float(values.max())
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    rank = float(name[1:]) / 100 * reached[-1]
    at = min(int((reached < rank).sum()), len(order) - 1)
    return float(values[order[at]])


def _time(value: float | None) -> float:
    return float("nan") if value is None else value
