"""The built-in scheduling policies, as plugins."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


def _policy(name: str, cls: str, summary: str) -> Plugin:
    module = f"nanofw.schedulers.{name}"
    return Plugin(
        name,
        f"{module}:{cls}",
        api="scheduler/2",
        options=f"{module}:{cls}Options",
        capabilities={"overlap": True},
        summary=summary,
    )


@hookimpl
def scheduler() -> list[Plugin]:
    return [
        _policy("fcfs", "Fcfs", "first come, first served, with a watermark"),
        _policy(
            "shortest_job_first", "ShortestJobFirst", "by prompt or expected output, with ageing"
        ),
        _policy("priority", "Priority", "priority classes, with ageing and preemption"),
        _policy(
            "longest_prefix_match",
            "LongestPrefixMatch",
            "most cached prompt first, within a window and a longest wait",
        ),
        _policy("fair_share", "FairShare", "each client its share of the tokens"),
        _policy(
            "earliest_deadline_first",
            "EarliestDeadlineFirst",
            "by deadline, requests that are late already last",
        ),
        _policy("partitioned", "Partitioned", "classes of prompt lengths, each with its share"),
        _policy("random", "Random", "random order, as a control"),
    ]
