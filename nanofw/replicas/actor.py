"""A replica as an actor of Ray."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import ray

from nanofw.config.load import LoadedConfig
from nanofw.replicas.messages import ReplicaCommand, ReplicaFailed, ReplicaOutput, ReplicaReady
from nanofw.replicas.replica import Replica
from nanofw.runtime.ray.placement_group import InheritedPlacementGroup


class ActorReplica:
    """`Replica`, with calls of Ray that do not wait for each other.

    Args:
        loaded: the configuration of the run.
        path: `sys.path` of the calling program; what is not there is added.
        group: placement group of the ranks; None: there is one rank, in this process.
    """

    def __init__(self, loaded: LoadedConfig, path: list[str], group: Any) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        if not os.environ.get("CUDA_VISIBLE_DEVICES", "all"):
            # Ray hides all GPUs from an actor that asked for none. This one holds no memory
            # there, its ranks do, but it must see what there is to choose components.
            del os.environ["CUDA_VISIBLE_DEVICES"]
        InheritedPlacementGroup.keep(group)
        self._replica = Replica(loaded)

    @ray.method(concurrency_group="questions")
    def ready(self) -> ReplicaReady | ReplicaFailed:
        """`Replica.ready`."""
        return self._replica.ready()

    @ray.method(concurrency_group="commands")
    def deliver(self, number: int, commands: list[ReplicaCommand]) -> None:
        """`Replica.deliver`."""
        self._replica.deliver(number, commands)

    @ray.method(concurrency_group="outputs")
    def outputs(self) -> list[ReplicaOutput] | None:
        """`Replica.outputs`."""
        return self._replica.outputs()

    @ray.method(concurrency_group="questions")
    def now(self) -> float:
        """Seconds on the clock of its host, which is the engine's."""
        return time.monotonic()


_remote: Any = ray.remote
RemoteReplica: Any = _remote(concurrency_groups={"commands": 1, "outputs": 1, "questions": 2})(
    ActorReplica
)
"""`ActorReplica` as Ray has it."""
