"""Replicas as processes of this host."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import select
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nanofw.assembly import Selection
from nanofw.config.load import LoadedConfig
from nanofw.contracts.clock import RealClock
from nanofw.contracts.requests import Request
from nanofw.replicas.messages import ReplicaCommand, ReplicaFailed, ReplicaReady, StopReplica
from nanofw.replicas.placement import DistantReplicas, ReplicaEvents, ReplicaState
from nanofw.runtime.parallel.process import ChildProcess

START_TIMEOUT_S, STEP_TIMEOUT_S = 1800.0, 300.0
"""`start_timeout_s` and `step_timeout_s` of an executor that has no such options."""
SEND_TIMEOUT_S = 30.0
"""How long a replica may leave its commands unread before it counts as lost."""
RESTART_WAIT_S, MAX_RESTART_WAIT_S = 0.5, 30.0
"""Seconds from the end of a replica to its next start: the first time, and at most."""
SERVED_S = 60.0
"""A replica that served so long has its restarts back."""
_END_WAIT_S = 5.0

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LocalReplica(ReplicaState):
    """One replica.

    Attributes:
        process: its process.
        heard: when it last said something, or had nothing to do.
        was_busy: whether it had requests when it was last looked at.
        variables: of its process.
        end: why its process is about to end, or has ended; empty: nothing is wrong.
        began: when it became ready.
        start_at: when it is to be started again; None: that is not due.
        num_restarts: since it last served for `SERVED_S`.
        origins: of its components, when it was first there.
    """

    number: int
    process: ChildProcess
    variables: Mapping[str, str]
    heard: float = 0.0
    was_busy: bool = False
    end: str = ""
    began: float = 0.0
    start_at: float | None = None
    num_restarts: int = 0
    origins: tuple[tuple[str, str, str], ...] = ()


class ReplicaProcesses(DistantReplicas):
    """Starts all replicas and waits for them. One that dies later is started again.

    It waits longer before each time (`RESTART_WAIT_S`, doubled up to `MAX_RESTART_WAIT_S`), and is
    gone for good after `engine.replica_restarts` times without `SERVED_S` of service in between.
    Each replica has the devices after those of the replica before it; on CPU they share the cores.

    Raises:
        ConfigError: the devices are not enough.
        NanofwError: what kept a replica from starting.
    """

    def __init__(self, selection: Selection) -> None:
        super().__init__(RealClock())
        self._replicas: list[LocalReplica] = []
        self._selector = selectors.DefaultSelector()
        self._is_open = True
        loaded = selection.loaded
        self._content = pickle.dumps(loaded)
        self._max_restarts = loaded.config.engine.replica_restarts
        self._is_started = False
        options: Any = selection.components["executor"].options
        timeout_s = getattr(options, "start_timeout_s", START_TIMEOUT_S)
        self._step_timeout_s: float = getattr(options, "step_timeout_s", STEP_TIMEOUT_S)
        try:
            for number, variables in enumerate(environments(loaded, selection.device)):
                process = _process(number, variables)
                replica = LocalReplica(number=number, process=process, variables=variables)
                self._replicas.append(replica)
                self._begin(replica)
            self._wait_until_ready(timeout_s, "executor.start_timeout_s")
            self._is_started = True
        except BaseException:
            self.close()
            raise

    def _begin(self, replica: LocalReplica) -> None:
        """A process was made: tell it what to run, and listen to it."""
        channel = replica.process.channel
        self._selector.register(channel, selectors.EVENT_READ, replica)
        with contextlib.suppress(OSError):  # it is gone already, which is seen when it is read
            channel.send(self._content)

    @property
    def all(self) -> Sequence[ReplicaState]:
        return self._replicas

    def check(self, request: Request) -> None:
        for name, arguments in request.arguments.items():
            if (odd := _odd_part(arguments)) is not None:
                kind = type(odd).__name__
                raise ValueError(
                    f"arguments for {name} contain an object of the class {kind}; replicas are "
                    "other processes and take numbers, texts, lists and mappings alone"
                )

    def send(self, number: int, *commands: ReplicaCommand) -> None:
        process = self._replicas[number].process
        try:
            process.channel.send(pickle.dumps(list(commands)))
        except TimeoutError:
            process.kill()  # seen with the next poll, as any other end
        except OSError:
            pass

    def watch(self, is_busy: Callable[[int], bool]) -> None:
        now = time.monotonic()
        for replica in self._replicas:
            if replica.ready is None:
                continue
            was_busy, replica.was_busy = replica.was_busy, is_busy(replica.number)
            if not (was_busy and replica.was_busy):
                replica.heard = now
            elif now - replica.heard > self._step_timeout_s and not _is_unread(replica):
                stack = replica.process.stack()
                replica.end = (
                    f"replica {replica.number} (process {replica.process.pid}) said nothing for "
                    f"{self._step_timeout_s:g} s (executor.step_timeout_s)\n{stack}"
                ).rstrip()
                replica.process.kill()  # seen with the next poll, as any other end

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for number in self.alive:
            self.send(number, StopReplica())
        deadline = time.monotonic() + _END_WAIT_S
        while self.alive and (left := deadline - time.monotonic()) > 0:
            self._receive(left, ReplicaEvents())
        for replica in self._replicas:
            replica.process.kill()
        for replica in self._replicas:
            replica.process.close()
        self._selector.close()

    def _receive(self, timeout_s: float, events: ReplicaEvents) -> None:
        if self._is_open:
            self._start_again()
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            replica: LocalReplica = key.data
            try:
                messages = replica.process.channel.take()
            except EOFError:
                self._selector.unregister(replica.process.channel)
                self._gone(replica, events)
                continue
            for content in messages:
                self._take(replica, pickle.loads(content), events)

    def _take(self, replica: LocalReplica, message: Any, events: ReplicaEvents) -> None:
        replica.heard = time.monotonic()
        if isinstance(message, ReplicaReady):
            self._ready(replica, message)
        elif isinstance(message, ReplicaFailed):  # it could not start
            replica.end, replica.error = message.message, message.error
            if not self._is_started:
                events.gone.append((replica.number, message.text))
        else:
            self._take_outputs(replica.number, message, events)

    def _failed(self, number: int, failed: ReplicaFailed) -> None:
        replica = self._replicas[number]
        self._note_service(replica)
        replica.ready, replica.end = None, failed.message

    def _ready(self, replica: LocalReplica, ready: ReplicaReady) -> None:
        replica.origins = replica.origins or ready.origins
        if ready.origins != replica.origins:
            replica.end = "its plugins have changed since the run began; start the run again"
            replica.num_restarts = self._max_restarts
            replica.process.kill()  # seen with the next poll, as any other end
            return
        replica.ready, replica.began = ready, time.monotonic()

    @staticmethod
    def _note_service(replica: LocalReplica) -> None:
        """It serves no longer; how long it did."""
        if replica.ready is not None and time.monotonic() - replica.began >= SERVED_S:
            replica.num_restarts = 0

    def _gone(self, replica: LocalReplica, events: ReplicaEvents) -> None:
        """Its channel is closed: it is started again later, or it is gone for good."""
        was_there = replica.ready is not None or not (replica.end or self._is_started)
        self._note_service(replica)
        replica.ready = None
        end = replica.end or replica.process.end_text(_END_WAIT_S if self._is_open else 0.0)
        replica.end = replica.last_end = end
        if self._is_open and self._is_started and replica.num_restarts < self._max_restarts:
            wait_s = min(MAX_RESTART_WAIT_S, RESTART_WAIT_S * 2**replica.num_restarts)
            replica.start_at = time.monotonic() + wait_s
            logger.warning("replica %d starts again in %g s: %s", replica.number, wait_s, end)
        else:
            replica.problem = end
        if was_there:
            events.gone.append((replica.number, end))

    def _start_again(self) -> None:
        """Start what is due."""
        for replica in self._replicas:
            if replica.start_at is None or time.monotonic() < replica.start_at:
                continue
            replica.process.kill()
            replica.process.close()
            replica.start_at, replica.end, replica.error = None, "", ""
            replica.num_restarts += 1
            replica.process = _process(replica.number, replica.variables)
            self._begin(replica)


def _process(number: int, variables: Mapping[str, str]) -> ChildProcess:
    return ChildProcess(f"replica {number}", "nanofw.replicas.process", SEND_TIMEOUT_S, variables)


def _odd_part(value: object) -> object | None:
    """A part of a value that another process may not know, or None."""
    parts: Iterable[object] = ()
    if isinstance(value, Mapping):
        parts = itertools.chain.from_iterable(cast("Mapping[object, object]", value).items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = cast("Iterable[object]", value)
    elif type(value).__module__ not in ("builtins", "numpy") or callable(value):
        return value
    return next((odd for part in parts if (odd := _odd_part(part)) is not None), None)


def _is_unread(replica: LocalReplica) -> bool:
    """Whether it has said something that was not read: this process may have been stopped."""
    return bool(select.select([replica.process.channel], [], [], 0)[0])


def environments(loaded: LoadedConfig, device: str) -> list[Mapping[str, str]]:
    """Variables of each replica's process: which devices and how many cores it has."""
    engine = loaded.config.engine
    count, size = engine.replicas, engine.tensor_parallel_size
    kind, _, index = device.partition(":")
    if kind != "cuda":
        cores = max(1, (os.cpu_count() or 1) // count)
        shared = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}
        return [shared] * count
    if index:
        message = "must have no number: the replicas take the devices one after the other"
        raise loaded.error(message, ("engine", "device"))
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count * size))) if given is None else given.split(",")
    if len(names) < count * size:
        message = (
            f"{count} replicas of {size} ranks need {count * size} devices, "
            f"CUDA_VISIBLE_DEVICES has {len(names)}"
        )
        raise loaded.error(message, ("engine", "replicas"))
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(names[number * size : (number + 1) * size])}
        for number in range(count)
    ]
