"""The lines of a decision log. Each is a JSON object whose `kind` says what it is.

Lines stand in the order of events. Step lines that would repeat the one before are gathered in a
`steady` line. Token ids are int32 in base64. Ids of requests name samples, as plans do.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.narrowing import JsonObject

VERSION = 1


class _Record(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """Base of all lines. What has its default is left out."""


class RunRecord(_Record, tag="run"):
    """The first line: what ran.

    Attributes:
        made_by: nanofw's version, and its commit in a checkout.
        config: the resolved configuration.
        limits: fields of `Limits`.
        overlap: whether a step stayed in flight.
        arm, seed, point: of a comparison.
    """

    version: int
    made_by: str
    config: JsonObject
    limits: JsonObject
    overlap: bool
    virtual_time: bool
    arm: str = ""
    point: float | None = None
    seed: int | None = None


class RequestRecord(_Record, tag="request"):
    """A request came. Fields are those of `Request`, and what was not the default of sampling.

    Attributes:
        now: when the engine took it, on its clock.
        refused: why it was not accepted.
    """

    id: str
    now: float
    prompt: bytes
    sampling: JsonObject = {}
    arrival: float | None = None
    client: str = ""
    priority: int = 0
    deadline: float | None = None
    expected_output_tokens: int | None = None
    arguments: JsonObject = {}
    cache_salt: str = ""
    refused: str | None = None


class KeyRecord(msgspec.Struct, array_like=True, frozen=True):
    """A request got a key from the policy."""

    id: str
    key: Any
    group: Any = None


class NewRecord(msgspec.Struct, array_like=True, frozen=True):
    """A request that was given a row: tokens found in the cache, tokens computed in the step."""

    id: str
    num_cached: int
    num_tokens: int


class PreemptionRecord(msgspec.Struct, array_like=True, frozen=True):
    """A request that was given up, and the requests that needed its place or a block each."""

    id: str
    needed_by: tuple[str, ...]


class StepRecord(_Record, tag="step"):
    """What the policy saw and chose in one plan.

    Attributes:
        step: the plan's number; None: none was made, since nothing can run or the step in flight
            must be collected first.
        planned: when, on the engine's clock.
        decodes: rows that decode.
        chunks: id and tokens of each request whose prefill goes on.
        new: requests that were given a row, in this order.
        paused: requests that stood aside.
        preempted: requests that were given up before.
        keys: that the policy gave since the plan before.
        window: ids in the order in which the policy's window was tried.
        blocker: what kept the next waiting request out (`Blocker`); None: no request waits.
        head: the request that it kept out, where that is known.
        waiting, running: requests after the plan.
        free: blocks that could be taken after the plan.
    """

    step: int | None
    planned: float
    decodes: int = 0
    chunks: tuple[tuple[str, int], ...] = ()
    new: tuple[NewRecord, ...] = ()
    paused: tuple[str, ...] = ()
    preempted: tuple[PreemptionRecord, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    window: tuple[str, ...] = ()
    blocker: str | None = None
    head: str | None = None
    waiting: int = 0
    running: int = 0
    free: int = 0

    @property
    def choice(self) -> tuple[object, ...]:
        """What two plans are compared by."""
        victims = tuple(item.id for item in self.preempted)
        is_plan = self.step is not None
        return is_plan, self.decodes, self.chunks, self.new, self.paused, victims


class SteadyRecord(_Record, tag="steady"):
    """Steps from `first` on that decode the rows of the step before, and choose nothing else."""

    first: int
    planned: list[float]


class CollectedRecord(_Record, tag="collected"):
    """When the steps from `first` on were collected."""

    first: int
    times: list[float]


class FinishRequestRecord(_Record, tag="finish_request"):
    """A caller ended a request, or one sample of it."""

    id: str
    reason: str
    now: float
    num_tokens: int | None = None
    sample_index: int | None = None


class FinishedRecord(_Record, tag="finished"):
    """A request, or one sample of it, has ended. Times are on the engine's clock."""

    id: str
    reason: str
    tokens: bytes
    arrival: float
    finished: float
    scheduled: float | None = None
    first_token: float | None = None
    sample_index: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    num_recomputed: int = 0
    num_recovered: int = 0
    error: str | None = None


Record: TypeAlias = (
    RunRecord
    | RequestRecord
    | StepRecord
    | SteadyRecord
    | CollectedRecord
    | FinishRequestRecord
    | FinishedRecord
)


def token_bytes(token_ids: Any) -> bytes:
    """Token ids as a line keeps them."""
    return np.ascontiguousarray(token_ids, "<i4").tobytes()


def token_ids(kept: bytes) -> IntArray:
    """int32[t] of what `token_bytes` made."""
    return np.frombuffer(kept, "<i4").astype(np.int32)
