"""Replicas as actors that Ray places, restarts and reports dead."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from nanofw.config.load import LoadedConfig
from nanofw.contracts.clock import RealClock
from nanofw.narrowing import JsonObject
from nanofw.replicas.actor import RemoteReplica
from nanofw.replicas.messages import ReplicaCommand, ReplicaFailed, ReplicaReady, StopReplica
from nanofw.replicas.placement import DistantReplicas, ReplicaEvents, ReplicaState
from nanofw.runtime.ray import cluster
from nanofw.runtime.ray.placement_group import ReservedPlacementGroup, bundle_of

_END_WAIT_S = 5.0


@dataclass(slots=True, kw_only=True)
class ReplicaActor(ReplicaState):
    """One replica.

    Attributes:
        handle: Ray's.
        num_sent: commands, since it became ready.
        failed_pid: of the process whose engine failed, and which must not be taken for a new one.
    """

    handle: Any
    num_sent: int = 0
    failed_pid: int = 0


class ReplicaActors(DistantReplicas):
    """Starts all replicas and waits for them.

    Args:
        loaded: the configuration; each replica reads it for itself.
        options: of executor `ray`.
        device: of the run.

    Raises:
        NanofwError: what kept a replica from starting.
    """

    def __init__(self, loaded: LoadedConfig, options: Any, device: str) -> None:
        super().__init__(RealClock())
        engine = loaded.config.engine
        self._options, self._is_open = options, True
        self._groups: list[ReservedPlacementGroup] = []
        self._asked: dict[Any, int] = {}
        self._actors: list[ReplicaActor] = []
        cluster.join(options.address)
        try:
            bundle = bundle_of(options.cpus_per_rank, device)
            reserved = self._reserve(engine.replicas, engine.tensor_parallel_size, bundle)
            for place, group in reserved:
                remote = RemoteReplica.options(max_restarts=options.max_restarts, **place)
                handle = remote.remote(loaded, list(sys.path), group)
                self._actors.append(ReplicaActor(handle=handle))
            for number in range(engine.replicas):
                self._ask_ready(number)
            self._wait_until_ready(options.start_timeout_s, "executor.start_timeout_s")
        except BaseException:
            self.close()
            raise

    @property
    def all(self) -> Sequence[ReplicaState]:
        return self._actors

    def send(self, number: int, *commands: ReplicaCommand) -> None:
        actor = self._actors[number]
        actor.handle.deliver.remote(actor.num_sent, list(commands))
        actor.num_sent += len(commands)

    def _receive(self, timeout_s: float, events: ReplicaEvents) -> None:
        waiting = list(self._asked)
        if not waiting:
            return
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for ref in ready:
            self._take(self._asked.pop(ref), ref, events)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if ray.is_initialized():
            with contextlib.suppress(RayError):
                self._let_leave()
            for actor in self._actors:
                ray.kill(actor.handle)
            for ref in self._asked:  # these fail when Ray knows that the actor is dead
                with contextlib.suppress(RayError):
                    ray.get(ref, timeout=_END_WAIT_S)
            for group in self._groups:
                group.release()
        self._asked = {}
        cluster.leave()

    def _let_leave(self) -> None:
        for number in self.alive:
            self.send(number, StopReplica())
        deadline = time.monotonic() + _END_WAIT_S
        leaving = {
            ref for ref, number in self._asked.items() if self._actors[number].ready is not None
        }
        while leaving and time.monotonic() < deadline:
            done, _ = ray.wait(list(leaving), timeout=deadline - time.monotonic())
            for ref in done:
                leaving.discard(ref)
                number = self._asked.pop(ref)
                with contextlib.suppress(RayError):
                    if ray.get(ref) is not None:
                        again = self._actors[number].handle.outputs.remote()
                        self._asked[again] = number
                        leaving.add(again)

    # -- starting -------------------------------------------------------------------------

    def _reserve(
        self, count: int, size: int, bundle: dict[str, float]
    ) -> list[tuple[JsonObject, Any]]:
        """Options of each replica's actor, and the placement group of its ranks if it has several.

        Ray keeps what an actor itself reserves until the job ends, even if the actor dies.
        """
        options = self._options
        if size == 1:
            group = ReservedPlacementGroup(
                "replicas", count, bundle, "spread", options.placement_timeout_s
            )
            self._groups.append(group)
            return [(group.bundle_options(number), None) for number in range(count)]
        for _ in range(count):
            self._groups.append(
                ReservedPlacementGroup(
                    "ranks", size, bundle, options.placement, options.placement_timeout_s
                )
            )
        return [(group.inheritor_options(), group.group) for group in self._groups]

    def _ask_ready(self, number: int) -> None:
        self._asked[self._actors[number].handle.ready.remote()] = number

    # -- arriving -------------------------------------------------------------------------

    def _take(self, number: int, ref: Any, events: ReplicaEvents) -> None:
        actor = self._actors[number]
        try:
            found = ray.get(ref)
        except RayError as error:
            self._gone(number, error, events)
            return
        if isinstance(found, ReplicaReady):
            self._begin(number, found)
        elif isinstance(found, ReplicaFailed):  # it could not start, and would not the next time
            actor.problem, actor.error = found.message, found.error
            events.gone.append((number, found.text))
        elif found is not None:
            self._take_outputs(number, found, events)
            if actor.ready is not None:
                self._asked[actor.handle.outputs.remote()] = number

    def _begin(self, number: int, ready: ReplicaReady) -> None:
        actor = self._actors[number]
        if ready.pid == actor.failed_pid:  # it is about to end
            self._ask_ready(number)
            return
        actor.ready, actor.num_sent = ready, 0
        actor.offset = self._clock_offset(actor)
        self._asked[actor.handle.outputs.remote()] = number

    def _failed(self, number: int, failed: ReplicaFailed) -> None:
        """Ray starts the actor again if it may."""
        actor = self._actors[number]
        if actor.ready is not None:
            actor.failed_pid = actor.ready.pid
        actor.ready = None
        if self._options.max_restarts:
            ray.kill(actor.handle, no_restart=False)
            self._ask_ready(number)
        else:
            actor.problem = failed.message

    def _gone(self, number: int, error: RayError, events: ReplicaEvents) -> None:
        """An actor's call failed: Ray starts it again, or it is gone for good."""
        actor = self._actors[number]
        was_ready = actor.ready is not None
        actor.ready = None
        reason = cluster.cause(error)
        if self._options.max_restarts and (was_ready or isinstance(error, ActorUnavailableError)):
            self._ask_ready(number)  # fails in turn if Ray does not start it again
            if was_ready:
                events.gone.append((number, reason))
            return
        actor.problem = actor.problem or reason
        events.gone.append((number, reason))

    def _clock_offset(self, actor: ReplicaActor) -> float:
        """Clocks of different hosts start anywhere; those of one host agree."""
        begin = self.clock.now()
        with contextlib.suppress(RayError):
            theirs: Any = ray.get(actor.handle.now.remote(), timeout=_END_WAIT_S)
            end = self.clock.now()
            if not begin <= theirs <= end:
                return (begin + end) / 2 - theirs
        return 0.0
