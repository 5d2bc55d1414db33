"""What the engine before the replicas and a replica send each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.narrowing import Stats


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Serve a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Abort a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class FinishSample:
    """Finish a sample at `num_tokens` (`Engine.finish_request`)."""

    request_id: str
    num_tokens: int
    reason: FinishReason
    sample_index: int


@dataclass(frozen=True, slots=True)
class AskStats:
    """Send `Engine.stats()`, in a `ReplicaStats` with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """End the engine and the replica's work."""


ReplicaCommand: TypeAlias = AddRequest | AbortRequest | FinishSample | AskStats | StopReplica


@dataclass(frozen=True, slots=True)
class ReplicaReady:
    """The engine is there.

    Attributes:
        limits: of its scheduler.
        origins: kind, name and origin of each component that it chose.
        pid: of its process; `rank_pids`: of its ranks, where they have their own.
    """

    limits: Limits
    origins: tuple[tuple[str, str, str], ...]
    pid: int
    rank_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """The answer to `AskStats`."""

    number: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """The engine could not start, or cannot go on.

    Attributes:
        error: name of the exception's type if it is one of nanofw's, else empty.
        message: a sentence for the user.
        finished: what had ended in the step that failed.
    """

    error: str
    message: str
    traceback: str
    finished: tuple[RequestOutput, ...] = ()

    @property
    def text(self) -> str:
        """The sentence, and the traceback unless the error is one of nanofw's."""
        return self.message if self.error else f"{self.message}\n{self.traceback}".rstrip()


ReplicaOutput: TypeAlias = StepOutput | ReplicaStats | ReplicaFailed
