"""The simulated executor, as a plugin."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def executor() -> Plugin:
    return Plugin(
        "sim",
        "nanofw.sim.executor:SimExecutor",
        api="executor/1",
        options="nanofw.sim.options:SimOptions",
        capabilities={"devices": ("*",), "overlap": True, "needs": (), "virtual_time": True},
        summary="plans answered after a modelled time; tokens by rule, no weights",
    )
