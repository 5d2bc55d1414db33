"""What the engine before the replicas needs of them, wherever they run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanofw import errors
from nanofw.contracts.clock import Clock
from nanofw.contracts.outputs import StepOutput
from nanofw.contracts.requests import Request
from nanofw.engine.engine import Engine
from nanofw.errors import ExecutorError, NanofwError
from nanofw.narrowing import Stats
from nanofw.replicas.messages import (
    AskStats,
    ReplicaCommand,
    ReplicaFailed,
    ReplicaOutput,
    ReplicaReady,
    ReplicaStats,
)

_ANSWER_WAIT_S = 30.0


@dataclass(slots=True)
class ReplicaState:
    """One replica.

    Attributes:
        ready: None while it is starting, and when it is gone.
        offset: seconds to add to its clock to have the clock of the engine before it.
        problem: why it is gone for good.
        last_end: why it had to be started again; empty: it had not.
        error: what kept it from starting: a type of `nanofw.errors`, or empty.
    """

    ready: ReplicaReady | None = None
    offset: float = 0.0
    problem: str | None = None
    error: str = ""
    last_end: str = ""

    @property
    def why_not_ready(self) -> str:
        """What to say while it is being started again."""
        return "it is being started again" + (f": {self.last_end}" if self.last_end else "")


@dataclass(slots=True)
class ReplicaEvents:
    """What one poll of the replicas brought.

    Attributes:
        outputs: replicas' numbers, and what their steps brought.
        gone: those that are gone, and why; they may be started again.
    """

    outputs: list[tuple[int, StepOutput]] = field(default_factory=list[tuple[int, StepOutput]])
    gone: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


class Replicas(ABC):
    """All replicas of a run, ready when made.

    Attributes:
        clock: of the engine before them.
    """

    clock: Clock

    @property
    @abstractmethod
    def all(self) -> Sequence[ReplicaState]:
        """By number."""

    @property
    def engines(self) -> Sequence[Engine]:
        """Those of this process."""
        return ()

    @property
    def alive(self) -> list[int]:
        """Numbers of those that serve."""
        return [number for number, replica in enumerate(self.all) if replica.ready is not None]

    @property
    def is_hopeless(self) -> bool:
        """Whether all are gone for good."""
        return all(replica.problem is not None for replica in self.all)

    def check(self, request: Request) -> None:
        """Raise ValueError where a request cannot be sent to a replica."""

    @abstractmethod
    def send(self, number: int, *commands: ReplicaCommand) -> None:
        """Send commands to a replica that is alive; what becomes of them comes with `poll`."""

    @abstractmethod
    def poll(self, timeout_s: float) -> ReplicaEvents:
        """Wait for something to arrive."""

    def watch(self, is_busy: Callable[[int], bool]) -> None:
        """End those that have requests and are silent for too long, where nothing else does.

        Args:
            is_busy: whether a replica has requests.
        """

    @abstractmethod
    def stats(self) -> dict[int, Stats]:
        """`Engine.stats()` of those that are alive and answer, by number."""

    @abstractmethod
    def close(self) -> None:
        """Let all leave, end those that do not. Idempotent."""


class DistantReplicas(Replicas):
    """Replicas in processes of their own, which send lists of outputs."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self._held = ReplicaEvents()  # came while an answer was waited for
        self._answers: dict[int, Stats] = {}
        self._question = 0

    def poll(self, timeout_s: float) -> ReplicaEvents:
        if self._held.outputs or self._held.gone:
            held, self._held = self._held, ReplicaEvents()
            return held
        events = ReplicaEvents()
        self._receive(timeout_s, events)
        return events

    @abstractmethod
    def _receive(self, timeout_s: float, events: ReplicaEvents) -> None:
        """Wait for something to arrive, and add it."""

    @abstractmethod
    def _failed(self, number: int, failed: ReplicaFailed) -> None:
        """The engine of a replica cannot go on: end it, or start it again."""

    def stats(self) -> dict[int, Stats]:
        self._question += 1
        self._answers = {}
        asked = set(self.alive)  # one that becomes ready meanwhile was not
        for number in asked:
            self.send(number, AskStats(self._question))
        deadline = time.monotonic() + _ANSWER_WAIT_S
        while asked & set(self.alive) - set(self._answers) and time.monotonic() < deadline:
            self._receive(deadline - time.monotonic(), self._held)
        return self._answers

    def _take_outputs(
        self, number: int, outputs: Sequence[ReplicaOutput], events: ReplicaEvents
    ) -> None:
        for item in outputs:
            match item:
                case StepOutput():
                    events.outputs.append((number, item))
                case ReplicaStats(question, stats):
                    if question == self._question:
                        self._answers[number] = stats
                case ReplicaFailed(finished=finished):
                    events.outputs.append((number, StepOutput(finished=list(finished))))
                    events.gone.append((number, item.text))
                    self._failed(number, item)
                    return

    def _wait_until_ready(self, timeout_s: float, key: str) -> None:
        """Raise what kept a replica from starting.

        Args:
            key: of the configuration that sets `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while len(self.alive) < len(self.all):
            left, events = deadline - time.monotonic(), ReplicaEvents()
            self._receive(max(0.0, left), events)
            for number, reason in events.gone:
                raise _start_error(self.all[number], f"replica {number}: {reason}")
            if left <= 0 and len(self.alive) < len(self.all):
                late = [n for n, replica in enumerate(self.all) if replica.ready is None]
                raise ExecutorError(
                    f"replicas {late} were not ready within {timeout_s:g} s ({key})"
                )


def _start_error(replica: ReplicaState, message: str) -> NanofwError:
    kind: Any = getattr(errors, replica.error, ExecutorError)
    try:
        return kind(message)
    except TypeError:
        return ExecutorError(message)
