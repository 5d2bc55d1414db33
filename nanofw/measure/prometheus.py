"""Counters of an engine in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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


def exposition(stats: Mapping[str, Any]) -> str:
    """`Engine.stats()` as text for a Prometheus scraper.

    A counter `num_x` becomes `nanofw_x_total`, gauges are those of `GAUGES`; KV blocks are one
    gauge with the label `state`, ended requests one counter with the label `reason`.
    """
    lines: list[str] = []
    for name, value in stats.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            lines += family(metric_name(name), _kind(name), HELP.get(name, name), [("", value)])
    reasons = [(f'{{reason="{reason}"}}', n) for reason, n in stats["num_finished"].items()]
    lines += family(
        "nanofw_finished_requests_total", "counter", "Requests that ended or were refused.", reasons
    )
    lines += _block_lines(stats["blocks"])
    return "\n".join(lines) + "\n"


def metric_name(name: str) -> str:
    """The metric of a counter or gauge of the engine."""
    return GAUGES.get(name) or f"nanofw_{name.removeprefix('num_')}_total"


def family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """The lines of one metric.

    Args:
        kind: counter, gauge or histogram.
        samples: what follows the name (suffix and labels) and the value, one each.
    """
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{suffix} {value:.17g}" for suffix, value in samples]


def _kind(name: str) -> str:
    return "gauge" if name in GAUGES else "counter"


def _block_lines(blocks: Mapping[str, Any]) -> list[str]:
    states = [(f'{{state="{state}"}}', blocks[f"num_{state}"]) for state in BLOCK_STATES]
    lines = family("nanofw_kv_blocks", "gauge", "KV blocks of the pool by state.", states)
    known = {"num_blocks", *(f"num_{state}" for state in BLOCK_STATES)}
    for name, value in blocks.items():
        if name not in known and isinstance(value, int):
            metric = f"nanofw_kv_{name.removeprefix('num_')}_total"
            lines += family(metric, "counter", f"KV allocator: {name}.", [("", value)])
    return lines
