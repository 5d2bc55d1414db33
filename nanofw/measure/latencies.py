"""Latencies of requests that were served, and statistics of them.

TTFT is the first token's time less the scheduled arrival, E2E the end's, queue the first
admission's; TPOT is (E2E - TTFT) / (tokens - 1), undefined for one token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.outputs import RequestOutput

PER_REQUEST: Mapping[str, str] = MappingProxyType(
    {
        "queue": "Seconds from arrival to the first step that ran the request.",
        "ttft": "Seconds from arrival to the first token.",
        "tpot": "Mean seconds per token after the first.",
        "e2e": "Seconds from arrival to the end.",
    }
)
"""Latencies of a request by name, in the order in which they are shown."""
LATENCIES = (*PER_REQUEST, "itl")
"""All latencies; ITL, the gaps between tokens, belongs to tokens and not to a request."""
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
        "queue": scheduled - arrival,
        "ttft": first - arrival,
        "tpot": tpot,
        "e2e": finished - arrival,
    }
    assert tuple(values) == tuple(PER_REQUEST)
    return values


def title(name: str) -> str:
    """A latency's name as tables show it: `TTFT`."""
    return name if name == "queue" else name.upper()


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
    target = float(name[1:]) / 100 * reached[-1]
    at = min(int((reached < target).sum()), len(order) - 1)
    return float(values[order[at]])


def _time(value: float | None) -> float:
    return float("nan") if value is None else value
