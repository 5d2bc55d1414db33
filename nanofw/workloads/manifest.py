"""The built-in workloads, as plugins."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


def _workload(name: str, module: str, cls: str, options: str, summary: str) -> Plugin:
    path = f"nanofw.workloads.{module}"
    return Plugin(
        name, f"{path}:{cls}", api="workload/1", options=f"{path}:{options}", summary=summary
    )


@hookimpl
def workload() -> list[Plugin]:
    return [
        _workload("poisson", "open_loop", "OpenLoop", "PoissonOptions", "independent arrivals"),
        _workload("gamma", "open_loop", "OpenLoop", "GammaOptions", "bursts, by their spread"),
        _workload("on_off", "open_loop", "OpenLoop", "OnOffOptions", "busy and silent by turns"),
        _workload("streams", "open_loop", "Streams", "StreamsOptions", "several over each other"),
        _workload(
            "closed_loop",
            "closed_loop",
            "ClosedLoop",
            "ClosedLoopOptions",
            "users who wait for the answer",
        ),
        _workload(
            "conversations",
            "conversations",
            "Conversations",
            "ConversationsOptions",
            "turns with growing prefixes",
        ),
        _workload("replay", "replay", "Replay", "ReplayOptions", "a trace file"),
        _workload("fixed", "replay", "FixedList", "FixedOptions", "a list of requests"),
    ]
