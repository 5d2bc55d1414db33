"""The replicas as the router sees them: actors that Ray places, restarts and reports dead."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from nanofw import errors
from nanofw.config.load import LoadedConfig
from nanofw.contracts.outputs import StepOutput
from nanofw.errors import ExecutorError, NanofwError
from nanofw.replicas.messages import (
    ReplicaCommand,
    ReplicaFailed,
    ReplicaOutput,
    ReplicaReady,
    StopReplica,
)
from nanofw.replicas.replica import RemoteReplica
from nanofw.runtime.ray import cluster
from nanofw.runtime.ray.placement_group import ReservedPlacementGroup, bundle_of

_END_WAIT_S = 5.0
_ANSWER_WAIT_S = 30.0


@dataclass(slots=True)
class ReplicaActor:
    """One replica.

    Attributes:
        handle: Ray's.
        ready: None while it is starting.
        offset: seconds to add to its clock to have the router's.
        problem: why it is gone for good.
        num_sent: commands, since it became ready.
        error: what kept it from starting: a type of `nanofw.errors`, or empty.
        failed_pid: of the process whose engine failed, and which must not be taken for a new one.
    """

    handle: Any
    ready: ReplicaReady | None = None
    offset: float = 0.0
    problem: str | None = None
    num_sent: int = 0
    failed_pid: int = 0
    error: str = ""


@dataclass(slots=True)
class ReplicaEvents:
    """What one poll of the replicas brought.

    Attributes:
        outputs: replicas' numbers, and what their steps brought.
        gone: those that are gone, and why; Ray may start them again.
    """

    outputs: list[tuple[int, StepOutput]] = field(default_factory=list[tuple[int, StepOutput]])
    gone: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


class ReplicaActors:
    """Starts all replicas and waits for them.

    Args:
        loaded: the configuration; each replica reads it for itself.
        options: of executor `ray`.
        device: of the run.
        now: seconds on the router's clock.

    Raises:
        NanofwError: what kept a replica from starting.
    """

    def __init__(
        self, loaded: LoadedConfig, options: Any, device: str, now: Callable[[], float]
    ) -> None:
        engine = loaded.config.engine
        self._options, self._now, self._is_open = options, now, True
        self._groups: list[ReservedPlacementGroup] = []
        self._asked: dict[Any, int] = {}
        self.all: list[ReplicaActor] = []
        cluster.join(options.address)
        try:
            bundle = bundle_of(options.cpus_per_rank, device)
            reserved = self._reserve(engine.replicas, engine.tensor_parallel_size, bundle)
            for place, group in reserved:
                remote = RemoteReplica.options(max_restarts=options.max_restarts, **place)
                self.all.append(ReplicaActor(remote.remote(loaded, list(sys.path), group)))
            for number in range(engine.replicas):
                self._ask_ready(number)
            self._wait_until_ready(options.start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> list[int]:
        """Numbers of those that serve."""
        return [number for number, actor in enumerate(self.all) if actor.ready is not None]

    @property
    def is_hopeless(self) -> bool:
        """Whether all are gone for good."""
        return all(actor.problem is not None for actor in self.all)

    def send(self, number: int, *commands: ReplicaCommand) -> None:
        """Send commands to a replica that is alive."""
        actor = self.all[number]
        actor.handle.deliver.remote(actor.num_sent, list(commands))
        actor.num_sent += len(commands)

    def poll(self, timeout_s: float) -> ReplicaEvents:
        """Wait for something to arrive."""
        events = ReplicaEvents()
        waiting = list(self._asked)
        if not waiting:
            return events
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for ref in ready:
            self._take(self._asked.pop(ref), ref, events)
        return events

    def stats(self) -> list[dict[str, Any]]:
        """Of those that are alive and answer."""
        refs = [self.all[number].handle.stats.remote() for number in self.alive]
        found: list[dict[str, Any]] = []
        for ref in refs:
            with contextlib.suppress(RayError):
                found.append(ray.get(ref, timeout=_ANSWER_WAIT_S))
        return found

    def close(self) -> None:
        """Let all leave, end those that do not. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        if ray.is_initialized():
            with contextlib.suppress(RayError):
                self._let_leave()
            for actor in self.all:
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
        leaving = {ref for ref, number in self._asked.items() if self.all[number].ready is not None}
        while leaving and time.monotonic() < deadline:
            done, _ = ray.wait(list(leaving), timeout=deadline - time.monotonic())
            for ref in done:
                leaving.discard(ref)
                number = self._asked.pop(ref)
                with contextlib.suppress(RayError):
                    if ray.get(ref) is not None:
                        again = self.all[number].handle.outputs.remote()
                        self._asked[again] = number
                        leaving.add(again)

    # -- starting -------------------------------------------------------------------------

    def _reserve(
        self, count: int, size: int, bundle: dict[str, float]
    ) -> list[tuple[dict[str, Any], Any]]:
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
        self._asked[self.all[number].handle.ready.remote()] = number

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.alive) < len(self.all):
            left = deadline - time.monotonic()
            events = self.poll(max(0.0, left))
            for number, reason in events.gone:
                raise _error(self.all[number], f"replica {number}: {reason}")
            if left <= 0 and len(self.alive) < len(self.all):
                late = [n for n, actor in enumerate(self.all) if actor.ready is None]
                raise ExecutorError(
                    f"replicas {late} were not ready within {timeout_s:g} s "
                    "(executor.start_timeout_s)"
                )

    # -- arriving -------------------------------------------------------------------------

    def _take(self, number: int, ref: Any, events: ReplicaEvents) -> None:
        actor = self.all[number]
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

    def _begin(self, number: int, ready: ReplicaReady) -> None:
        actor = self.all[number]
        if ready.pid == actor.failed_pid:  # it is about to end
            self._ask_ready(number)
            return
        actor.ready, actor.num_sent = ready, 0
        actor.offset = self._clock_offset(actor)
        self._asked[actor.handle.outputs.remote()] = number

    def _take_outputs(
        self, number: int, outputs: list[ReplicaOutput], events: ReplicaEvents
    ) -> None:
        actor = self.all[number]
        for item in outputs:
            if isinstance(item, ReplicaFailed):
                self._failed(number, item, events)
                return
            events.outputs.append((number, item))
        self._asked[actor.handle.outputs.remote()] = number

    def _failed(self, number: int, failed: ReplicaFailed, events: ReplicaEvents) -> None:
        """Its engine cannot go on; Ray starts the actor again if it may."""
        actor = self.all[number]
        events.outputs.append((number, StepOutput(finished=list(failed.finished))))
        events.gone.append((number, failed.text))
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
        actor = self.all[number]
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
        begin = self._now()
        with contextlib.suppress(RayError):
            theirs: Any = ray.get(actor.handle.now.remote(), timeout=_END_WAIT_S)
            end = self._now()
            if not begin <= theirs <= end:
                return (begin + end) / 2 - theirs
        return 0.0


def _error(actor: ReplicaActor, message: str) -> NanofwError:
    kind: Any = getattr(errors, actor.error, ExecutorError)
    try:
        return kind(message)
    except TypeError:
        return ExecutorError(message)
