"""A decision log that was read: plans in their order, and the life of every request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from nanofw.decisions.records import (
    VERSION,
    CollectedRecord,
    FinishedRecord,
    FinishRequestRecord,
    KeyRecord,
    PreemptionRecord,
    Record,
    RequestRecord,
    RunRecord,
    SteadyRecord,
    StepRecord,
)
from nanofw.engine.request_state import SAMPLE_SEPARATOR, sample_id
from nanofw.errors import ConfigError, near

_STEADY = {"new": (), "chunks": (), "preempted": (), "keys": (), "window": ()}


class PlanCall(NamedTuple):
    """The scheduler was asked for a plan.

    Attributes:
        step: the plan's number; None: none was made.
        planned: when, on the engine's clock.
        record: what was decided; steady steps share one.
    """

    step: int | None
    planned: float
    record: StepRecord


@dataclass(slots=True)
class Stay:
    """A request has a row.

    Attributes:
        began: number of the plan call that gave it one.
        num_cached: tokens found in the cache.
        last_chunk: number of the plan call with the last chunk of its prefill.
        preempted: what ended it; None: it went on to the request's end.
        ended: number of the plan call before which it was given up.
    """

    began: int
    num_cached: int
    last_chunk: int
    preempted: PreemptionRecord | None = None
    ended: int | None = None


@dataclass(slots=True)
class Life:
    """One request, or one sample of it, from its arrival to its end.

    Attributes:
        first: number of the first plan call that could have taken it.
        keys: that the policy gave it, each with the number of the plan call that it came before.
        last: number of plan calls when it ended.
    """

    id: str
    request: RequestRecord
    first: int
    keys: list[tuple[int, KeyRecord]] = field(default_factory=list[tuple[int, KeyRecord]])
    stays: list[Stay] = field(default_factory=list[Stay])
    finished: FinishedRecord | None = None
    last: int | None = None

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        return self.request.now if self.request.arrival is None else self.request.arrival

    def key_at(self, call: int) -> KeyRecord | None:
        """Its key in a plan call."""
        found = None
        for at, key in self.keys:
            if at > call:
                break
            found = key
        return found

    def waits_at(self, call: int) -> bool:
        """Whether it waits when the scheduler is asked for that plan, and may get a row in it."""
        if not self.keys or call < self.keys[0][0]:
            return False
        if self.last is not None and call >= self.last:
            return False
        for stay in self.stays:
            if stay.began < call and (stay.ended is None or call < stay.ended):
                return False
        return True


@dataclass(slots=True)
class DecisionLog:
    """All of a log.

    Attributes:
        events: what came from outside, with the number of the plan call that it came before.
        calls: plan calls, in order.
        collected: when each step was collected.
        lives: by the id of the sample.
        is_cut: the last line is not complete.
    """

    path: str
    run: RunRecord
    events: list[tuple[int, RequestRecord | FinishRequestRecord]] = field(
        default_factory=list[tuple[int, RequestRecord | FinishRequestRecord]]
    )
    calls: list[PlanCall] = field(default_factory=list[PlanCall])
    collected: list[float] = field(default_factory=list[float])
    lives: dict[str, Life] = field(default_factory=dict[str, Life])
    is_cut: bool = False

    @property
    def start(self) -> float:
        """When the first request arrived."""
        return min((life.arrival for life in self.lives.values()), default=0.0)

    def life(self, name: str) -> Life:
        """The life of a request. Raises `ConfigError` with similar ids if the log lacks it."""
        found = self.lives.get(name)
        if found is None and "/" in name:
            request_id, _, number = name.rpartition("/")
            found = self.lives.get(f"{request_id}{SAMPLE_SEPARATOR}{number}")
        if found is None:
            hint = near(name, self.lives, count=3) or f"; there are {_some(self.lives)}"
            raise ConfigError(f"has no request {name!r}{hint}", source=self.path)
        return found

    def waiting_at(self, call: int) -> list[Life]:
        """Requests that wait when a plan is asked for."""
        return [life for life in self.lives.values() if life.waits_at(call)]


def read_log(path: Path) -> DecisionLog:
    """Read a decision log.

    Raises:
        ConfigError: it is not one, with the line.
    """
    try:
        with path.open("rb") as file:
            return _read(str(path), _records(str(path), file))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def shown_id(name: str) -> str:
    """A sample's id for readers: `request/1`."""
    return name.replace(SAMPLE_SEPARATOR, "/")


def _records(path: str, lines: Iterator[bytes]) -> Iterator[Record | None]:
    """Each line; None for a last one that is not complete."""
    decoder = msgspec.json.Decoder[Record](Record)
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            if number > 1 and not line.endswith(b"\n"):
                yield None
                return
            raise ConfigError(
                f"is not a line of a decision log: {error}", source=path, line=number
            ) from None


def _read(path: str, records: Iterator[Record | None]) -> DecisionLog:
    run = next(records, None)
    if not isinstance(run, RunRecord):
        raise ConfigError("is not a decision log: its first line is of another kind", source=path)
    if run.version != VERSION:
        raise ConfigError(
            f"is a decision log of version {run.version}, made by {run.made_by}; this is version "
            f"{VERSION}",
            source=path,
        )
    log = DecisionLog(path, run)
    taker = _Taker(log)
    for line, record in enumerate(records, 2):
        if record is None:
            log.is_cut = True
            continue
        try:
            taker.take(record)
        except LookupError as error:
            raise ConfigError(
                f"does not follow from the lines before it ({error}): lines are missing, or stand "
                "in another order",
                source=path, line=line,
            ) from None  # fmt: skip
    return log


class _Taker:
    """Puts records where they belong."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._requests: dict[str, RequestRecord] = {}

    def take(self, record: Record) -> None:
        log, number = self._log, len(self._log.calls)
        match record:
            case StepRecord():
                self._take_step(record)
            case SteadyRecord():
                same = msgspec.structs.replace(log.calls[-1].record, **_STEADY)
                log.calls += [
                    PlanCall(record.first + i, planned, same)
                    for i, planned in enumerate(record.planned)
                ]
            case CollectedRecord():
                log.collected += record.times
            case RequestRecord():
                log.events.append((number, record))
                self._requests[record.id] = record
                log.lives[record.id] = Life(record.id, record, number)
            case FinishRequestRecord():
                log.events.append((number, record))
            case FinishedRecord():
                life = self._life(sample_id(record.id, record.sample_index))
                life.finished, life.last = record, number
            case RunRecord():
                raise ConfigError("holds two runs", source=log.path)

    def _life(self, name: str) -> Life:
        found = self._log.lives.get(name)
        if found is None:
            request = self._requests[name.partition(SAMPLE_SEPARATOR)[0]]
            found = self._log.lives[name] = Life(name, request, len(self._log.calls))
        return found

    def _take_step(self, record: StepRecord) -> None:
        number = len(self._log.calls)
        self._log.calls.append(PlanCall(record.step, record.planned, record))
        for key in record.keys:
            self._life(key.id).keys.append((number, key))
        for item in record.preempted:
            stay = self._life(item.id).stays[-1]
            stay.preempted, stay.ended = item, number
        for name, _ in record.chunks:
            self._life(name).stays[-1].last_chunk = number
        for new in record.new:
            self._life(new.id).stays.append(Stay(number, new.num_cached, number))


def _some(lives: dict[str, Life]) -> str:
    names = [shown_id(name) for name in list(lives)[:3]]
    return f"{', '.join(names)} and others" if len(lives) > 3 else ", ".join(names) or "none"
