"""The built-in routers, as plugins."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


def _router(name: str, cls: str, summary: str) -> Plugin:
    module = f"nanofw.routers.{name}"
    return Plugin(
        name,
        f"{module}:{cls}",
        api="router/1",
        options=f"{module}:{cls}Options",
        summary=summary,
    )


@hookimpl
def router() -> list[Plugin]:
    return [
        _router("least_loaded", "LeastLoaded", "where the fewest tokens are to compute"),
        _router("round_robin", "RoundRobin", "one replica after the other"),
        _router("prefix_affinity", "PrefixAffinity", "where the beginning of the prompt is cached"),
        _router("client_affinity", "ClientAffinity", "each client at one replica"),
    ]
