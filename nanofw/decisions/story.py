"""A request's story: when it waited, for what and behind whom, when it ran, who took its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanofw.decisions.log import DecisionLog, Life, Stay

IN_PROGRESS = "step"
"""It came while a step was being carried out."""


@dataclass(slots=True)
class Waited:
    """A stretch of waiting.

    Attributes:
        began, ended: seconds on the engine's clock; `ended` None: the log ends before.
        seconds, steps: by what it waited for: a `Blocker`, or `IN_PROGRESS`.
        served_before: requests that got a row meanwhile, in order.
        heads: other requests that were kept out at its head for want of blocks, and so on.
        after_preemption: it had run before.
        num_ahead, num_running: requests that waited with a better place, and that ran, when it
            began.
    """

    began: float
    ended: float | None
    after_preemption: bool
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    steps: dict[str, int] = field(default_factory=dict[str, int])
    served_before: list[str] = field(default_factory=list[str])
    heads: list[str] = field(default_factory=list[str])
    num_waiting: int = 0
    num_running: int = 0


@dataclass(slots=True)
class Ran:
    """A stretch with a row.

    Attributes:
        began: when the plan was made; `prefilled`: when its prompt was computed; `ended` None:
            the log ends before.
        step: of the plan.
        num_cached: tokens found in the cache.
        needed_by: requests for which it was given up.
        was_preempted: it was given up at the end.
    """

    began: float
    prefilled: float | None
    ended: float | None
    step: int
    num_cached: int
    was_preempted: bool = False
    needed_by: Sequence[str] = ()


@dataclass(slots=True)
class Story:
    """What happened to a request.

    Attributes:
        parts: stretches of waiting and running in turn.
    """

    life: Life
    parts: list[Waited | Ran]


def tell_story(log: DecisionLog, name: str) -> Story:
    """The story of a request. Raises ConfigError when the log does not have it."""
    return Teller(log).tell(name)


class Teller:
    """Tells stories of one log."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log

    def tell(self, name: str) -> Story:
        """See `tell_story`."""
        life = self._log.life(name)
        parts: list[Waited | Ran] = []
        first, began = (life.keys[0][0] if life.keys else life.first), life.arrival
        for stay in life.stays:
            parts.append(self._waited(life, first, stay.began, began, after=bool(parts)))
            parts.append(ran := self._ran(life, stay))
            if stay.ended is None:
                return Story(life, parts)
            first, began = stay.ended, ran.ended or began
        if life.request.refused is None:
            parts.append(self._waited(life, first, None, began, after=bool(parts)))
        return Story(life, parts)

    def _waited(
        self, life: Life, first: int, admitted: int | None, began: float, *, after: bool
    ) -> Waited:
        """From plan call `first` on, until the one that gave it a row."""
        calls = self._log.calls
        end = admitted
        if end is None:
            end = len(calls) if life.last is None else life.last
        ended = calls[end].planned if admitted is not None else None
        if admitted is None and life.finished is not None:
            ended = life.finished.finished
        found = Waited(began, ended, after)
        if first < len(calls):
            before = calls[first - 1].record if first else None
            found.num_waiting = before.waiting if before else 0
            found.num_running = before.running if before else 0
            if not after and calls[first].planned > began:
                found.seconds[IN_PROGRESS] = calls[first].planned - began
                found.steps[IN_PROGRESS] = 0
        for number in range(first, end):
            self._count(life, number, ended, found)
        if admitted is not None:
            for new in calls[admitted].record.new:
                if new.id == life.id:
                    break
                found.served_before.append(new.id)
        return found

    def _count(self, life: Life, number: int, ended: float | None, found: Waited) -> None:
        """A plan call that left the request waiting."""
        calls = self._log.calls
        call = calls[number]
        record = call.record
        until = calls[number + 1].planned if number + 1 < len(calls) else call.planned
        if ended is not None:
            until = min(until, ended)
        reason = record.blocker or IN_PROGRESS
        found.seconds[reason] = found.seconds.get(reason, 0.0) + max(0.0, until - call.planned)
        found.steps[reason] = found.steps.get(reason, 0) + 1
        found.served_before += [new.id for new in record.new]
        head = record.head
        if head is not None and head != life.id and head not in found.heads:
            found.heads.append(head)

    def _ran(self, life: Life, stay: Stay) -> Ran:
        calls, collected = self._log.calls, self._log.collected
        step = calls[stay.began].step
        assert step is not None
        last = calls[stay.last_chunk].step
        prefilled = None
        if last is not None and last < len(collected):
            prefilled = collected[last]
        ended = None
        if stay.ended is not None:
            ended = calls[stay.ended].planned
        elif life.finished is not None:
            ended = life.finished.finished
        found = Ran(calls[stay.began].planned, prefilled, ended, step, stay.num_cached)
        if stay.preempted is not None:
            found.was_preempted, found.needed_by = True, stay.preempted.needed_by
        return found
