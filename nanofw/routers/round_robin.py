"""Router `round_robin`: one replica after the other."""

from __future__ import annotations

from collections.abc import Sequence

from nanofw.plugins import Options, ReplicaView, RequestView, Router, RouterConfig


class RoundRobinOptions(Options):
    """`router: {name: round_robin}`."""


class RoundRobin(Router):
    """Leaves out those that are gone; knows nothing of lengths."""

    def __init__(
        self, options: RoundRobinOptions | None = None, config: RouterConfig | None = None
    ) -> None:
        self._last = -1

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        ready = [replica.number for replica in replicas if replica.is_ready]
        later = [number for number in ready if number > self._last]
        self._last = (later or ready)[0]
        return self._last
