"""What is measured, and how each metric is defined. All times from the engine's one clock.

Per request: `nanofw.measure.latencies`. Over all tokens: ITL is every gap between tokens of
one request, a preemption's pause included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.measure.latencies import LATENCIES, PER_REQUEST, STATISTICS, weighted_statistic

DEFAULT_METRICS = (
    "ttft.mean",
    "ttft.p99",
    "tpot.mean",
    "itl.p99",
    "e2e.mean",
    "e2e.p99",
    "queue.mean",
    "queue.max",
    "throughput.tokens",
    "goodput.rate",
    "preemptions",
    "recomputed_tokens",
    "cache.hit_rate",
)

WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "throughput.tokens": "output tokens per second",
        "throughput.requests": "requests per second",
        "goodput.rate": "requests per second that meet every limit of the SLO",
        "goodput.share": "share of the requests that do",
        "preemptions": "preemptions per request",
        "recomputed_tokens": "tokens computed again after preemptions, per request",
        "cache.hit_rate": "share of prompt tokens found in the cache at first admission",
        "service.gap": "greatest difference in service between backlogged clients, in tokens",
        "service.jain": "Jain's index of the clients' service: 1 is equal",
        "service.share": "a client's share of the tokens served while requests came",
    }
)
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "throughput.tokens": "tokens/s",
        "throughput.requests": "requests/s",
        "goodput.rate": "requests/s",
        "goodput.share": "of 1",
        "preemptions": "per request",
        "recomputed_tokens": "tokens per request",
        "cache.hit_rate": "of 1",
        "service.gap": "tokens",
        "service.jain": "of 1",
        "service.share": "of 1",
    }
)
"""Of those that are not times."""
HIGHER_IS_BETTER = frozenset(
    {
        "throughput.tokens", "throughput.requests", "goodput.rate", "goodput.share",
        "cache.hit_rate", "service.jain", "service.share",
    }
)  # fmt: skip
DIFFERENCES = frozenset(
    {
        "preemptions", "recomputed_tokens", "cache.hit_rate", "goodput.share", "service.jain",
        "service.share",
    }
)  # fmt: skip
"""Compared by difference; everything else by ratio."""
OF_ONE_CLIENT = frozenset({"service.share"})
"""Those of `WHOLE` that are of the client that the metric names."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name, taken apart.

    Attributes:
        quantity: `ttft`, `itl`, ... or a key of `WHOLE`.
        statistic: a key of `STATISTICS`, or empty.
        client: only requests of this client; None: all.
    """

    quantity: str
    statistic: str
    client: str | None

    @classmethod
    def parse(cls, name: str) -> Metric:
        """`ttft.p99`, `throughput.tokens`, `service.share@a`. ValueError lists what exists."""
        text, at, client = name.partition("@")
        quantity, _, statistic = text.rpartition(".")
        scope = client if at else None
        if quantity in LATENCIES and statistic in STATISTICS:
            if quantity == "itl" and at:
                raise ValueError(f"metric {name!r}: itl is not kept by client")
            return cls(quantity, statistic, scope)
        if text in WHOLE and bool(at) == (text in OF_ONE_CLIENT):
            return cls(text, "", scope)
        whole = [f"{name}@client" if name in OF_ONE_CLIENT else name for name in WHOLE]
        raise ValueError(
            f"no metric {name!r}: {', '.join(LATENCIES)} with one of "
            f"{', '.join(STATISTICS)} (as in ttft.p99, or ttft.p99@client), or one of "
            f"{', '.join(whole)}"
        )

    @property
    def higher_is_better(self) -> bool:
        return self.quantity in HIGHER_IS_BETTER

    @property
    def is_latency(self) -> bool:
        return self.quantity in LATENCIES

    @property
    def by_ratio(self) -> bool:
        """Whether arms are compared by the logarithm of a ratio."""
        return self.quantity not in DIFFERENCES


@dataclass(slots=True, kw_only=True)
class RunMeasurement:
    """What one run measured, warm-up and drain cut.

    Attributes:
        latencies: float64[n] over the requests by `PER_REQUEST`; NaN where undefined.
        clients: client of each.
        itl, itl_weights: gaps between tokens, and how often each occurred.
        whole: values of the metrics in `WHOLE`, but for those of one client.
        shares: of the tokens served, by client.
    """

    latencies: dict[str, FloatArray]
    clients: list[str]
    itl: FloatArray
    itl_weights: FloatArray
    whole: dict[str, float]
    shares: dict[str, float]

    def value(self, name: str) -> float:
        """A metric of this run; NaN when nothing was measured for it."""
        metric = Metric.parse(name)
        if metric.quantity in OF_ONE_CLIENT:
            return self.shares.get(metric.client or "", float("nan"))
        if not metric.statistic:
            return self.whole.get(metric.quantity, float("nan"))
        if metric.quantity == "itl":
            return weighted_statistic(metric.statistic, self.itl, self.itl_weights)
        values = self.latencies[metric.quantity]
        if metric.client is not None:
            values = values[np.array(self.clients, object) == metric.client]
        values = values[~np.isnan(values)]
        return STATISTICS[metric.statistic](values) if len(values) else float("nan")


def jain(service: FloatArray) -> float:
    """Jain's fairness index (Jain, Chiu, Hawe 1984) of float64[n] shares."""
    total = float((service**2).sum())
    return float(service.sum()) ** 2 / (len(service) * total) if total else 1.0


def describe(name: str) -> dict[str, object]:
    """Direction and scale of a metric, for reports."""
    metric = Metric.parse(name)
    scale = "ratio" if metric.by_ratio else "difference"
    return {"higher_is_better": metric.higher_is_better, "compared_by": scale}


def definition(name: str) -> str:
    """What a metric is, for readers."""
    metric = Metric.parse(name)
    scope = "" if metric.client is None else f", client {metric.client}"
    if not metric.statistic:
        return f"{WHOLE[metric.quantity]}{scope}"
    what = PER_REQUEST.get(metric.quantity, "Seconds between two tokens of one request.")
    words = {"mean": "mean", "max": "greatest", "p50": "median"}
    statistic = words.get(metric.statistic, f"{metric.statistic[1:]}th percentile")
    return f"{what[:-1]}: {statistic}{scope}"
