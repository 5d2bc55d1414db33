"""Latencies and ends of requests, for a Prometheus scraper."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from nanofw.contracts.requests import FinishReason
from nanofw.llm.results import RequestResult
from nanofw.measure.latencies import PER_REQUEST
from nanofw.measure.prometheus import family

BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip


class Histogram:
    """Counts of seconds by bucket."""

    def __init__(self, bounds: Sequence[float] = BUCKETS_S) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[tuple[str, float]]:
        """Cumulative counts, sum and count, as the text format has them."""
        lines: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            lines.append((f'_bucket{{le="{bound}"}}', total))
        return [*lines, ("_sum", self._sum), ("_count", total)]


class RequestMetrics:
    """Counters over the results of a session."""

    def __init__(self) -> None:
        self._by_reason = dict.fromkeys(FinishReason, 0)
        self._histograms = {name: Histogram() for name in PER_REQUEST}

    def observe(self, result: RequestResult) -> None:
        """Count a request that ended; latencies are those of requests that ended well."""
        self._by_reason[result.finish_reason] += 1
        if not result.ok or result.timings is None:
            return
        for name, histogram in self._histograms.items():
            seconds = getattr(result.timings, f"{name}_s")
            if seconds is not None:
                histogram.observe(seconds)

    def exposition(self) -> str:
        """The counters in the Prometheus text format."""
        reasons = [(f'{{reason="{reason}"}}', n) for reason, n in self._by_reason.items()]
        lines = family("nanofw_results_total", "counter", "Results that were handed out.", reasons)
        for name, text in PER_REQUEST.items():
            samples = self._histograms[name].samples()
            lines += family(f"nanofw_{name}_seconds", "histogram", text, samples)
        return "\n".join(lines) + "\n"
