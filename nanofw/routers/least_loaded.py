"""Router `least_loaded`: the replica with the fewest tokens to compute."""

from __future__ import annotations

from collections.abc import Sequence

from nanofw.plugins import Options, ReplicaView, RequestView, Router


class LeastLoadedOptions(Options):
    """`router: {name: least_loaded}`."""


class LeastLoaded(Router):
    """Of equals the first."""

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        ready = [replica for replica in replicas if replica.is_ready]
        return min(ready, key=lambda replica: replica.num_tokens).number
