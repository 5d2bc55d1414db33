"""What the package offers. Light: the policy itself is imported when a run has chosen it."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def scheduler() -> Plugin:
    return Plugin(
        "deadline",
        "nanofw_deadline.policy:Deadline",
        api="scheduler/2",
        options="nanofw_deadline.policy:DeadlineOptions",
        capabilities={"overlap": True},
        summary="earliest deadline first, with amends to clients that were served late",
    )
