"""Counters of an engine and latencies of its requests in the Prometheus text format 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from nanofw.contracts.requests import FinishReason
from nanofw.llm.results import RequestResult
from nanofw.measure.latencies import PER_REQUEST
from nanofw.narrowing import Stats

GAUGES: Mapping[str, str] = {
    "num_running": "nanofw_running_requests",
    "num_waiting": "nanofw_waiting_requests",
    "num_unfinished_tokens": "nanofw_unfinished_tokens",
}
BLOCK_STATES = ("free", "cached", "used")
HELP: Mapping[str, str] = {
    "num_running": "Requests in the running set.",
    "num_waiting": "Requests in the queue.",
    "num_unfinished_tokens": "Generated tokens of requests that have not ended.",
    "num_submitted": "Requests that were submitted.",
    "num_steps": "Steps that were committed.",
    "num_prompt_tokens": "Prompt tokens of requests that were started.",
    "num_cached_tokens": "Prompt tokens found in the prefix cache at first admission.",
    "num_output_tokens": "Generated tokens of requests that ended.",
    "num_preemptions": "Times that a running request gave way.",
    "num_recomputed_tokens": "Tokens computed again after a preemption.",
    "num_recovered_tokens": "Tokens of preempted requests found in the cache on their return.",
    "num_waits": "Plans that had to wait for the step in flight because room was short.",
    "num_failed_rows": "Rows whose logits were not finite.",
}
BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip


class Histogram:
    """Counts of seconds by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[tuple[str, float]]:
        """Cumulative counts, sum and count, as the text format has them."""
        lines: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), self._counts, strict=True):
            total += count
            lines.append((f'_bucket{{le="{bound}"}}', total))
        return [*lines, ("_sum", self._sum), ("_count", total)]


class RequestMetrics:
    """Counters over the results of a session."""

    def __init__(self) -> None:
        self._num_results = dict.fromkeys(FinishReason, 0)
        self._histograms = {name: Histogram() for name in PER_REQUEST}

    def observe(self, result: RequestResult) -> None:
        """Count a request that ended; latencies are those of served requests."""
        self._num_results[result.finish_reason] += 1
        if not result.ok or result.timings is None:
            return
        for name, histogram in self._histograms.items():
            seconds = getattr(result.timings, f"{name}_s")
            if seconds is not None:
                histogram.observe(seconds)

    def lines(self) -> list[str]:
        """All counts and latencies in the text format."""
        reasons = [(f'{{reason="{reason}"}}', n) for reason, n in self._num_results.items()]
        lines = _family("nanofw_results_total", "counter", "Results that were handed out.", reasons)
        for name, text in PER_REQUEST.items():
            samples = self._histograms[name].samples()
            lines += _family(f"nanofw_{name}_seconds", "histogram", text, samples)
        return lines


def prometheus_text(stats: Stats, requests: RequestMetrics) -> str:
    """Everything that a Prometheus scraper reads.

    A counter `num_x` of the engine becomes `nanofw_x_total`, gauges are those of `GAUGES`; KV
    blocks are one gauge with the label `state`, ended requests one counter with the label `reason`.

    Args:
        stats: `Engine.stats()`.
    """
    lines: list[str] = []
    for name, value in stats.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            metric = GAUGES.get(name) or f"nanofw_{name.removeprefix('num_')}_total"
            kind = "gauge" if name in GAUGES else "counter"
            lines += _family(metric, kind, HELP.get(name, name), [("", value)])
    reasons = [(f'{{reason="{reason}"}}', n) for reason, n in stats["num_finished"].items()]
    lines += _family(
        "nanofw_finished_requests_total", "counter", "Requests that ended or were refused.", reasons
    )
    return "\n".join([*lines, *_block_lines(stats["blocks"]), *requests.lines()]) + "\n"


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """The lines of one metric.

    Args:
        kind: counter, gauge or histogram.
        samples: what follows the name (suffix and labels) and the value, one each.
    """
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{suffix} {value:.17g}" for suffix, value in samples]


def _block_lines(blocks: Stats) -> list[str]:
    states = [(f'{{state="{state}"}}', blocks[f"num_{state}"]) for state in BLOCK_STATES]
    lines = _family("nanofw_kv_blocks", "gauge", "KV blocks of the pool by state.", states)
    known = {"num_blocks", *(f"num_{state}" for state in BLOCK_STATES)}
    for name, value in blocks.items():
        if name not in known and isinstance(value, int):
            metric = f"nanofw_kv_{name.removeprefix('num_')}_total"
            lines += _family(metric, "counter", f"KV allocator: {name}.", [("", value)])
    return lines
