"""From an engine's plan to a record of what was decided."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from nanofw.contracts.plan import StepPlan
from nanofw.decisions.records import KeyRecord, NewRecord, PreemptionRecord, StepRecord
from nanofw.engine.engine import Engine
from nanofw.narrowing import is_list


class PlanReader:
    """Reads the plans of one engine, in their order, with the scheduler's journal.

    Attributes:
        ids: the request of each row.
    """

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self.ids: dict[int, str] = {}

    def record(self, plan: StepPlan | None, now: float) -> StepRecord:
        """What was decided since the last call, and in this plan; None: no plan was made."""
        scheduler, journal = self._scheduler, self._scheduler.journal
        notes, preemptions, window = journal.take()
        paused = self._paused()  # before rows get other requests
        chunks, new = (), ()
        if plan is not None and plan.num_decodes < len(plan.rows):
            chunks, new = self._prefills(plan)
        head = journal.head
        return StepRecord(
            step=None if plan is None else plan.step,
            planned=now,
            decodes=0 if plan is None else plan.num_decodes,
            chunks=chunks,
            new=new,
            paused=paused,
            preempted=tuple([PreemptionRecord(*note) for note in preemptions])
            if preemptions
            else (),
            keys=tuple(
                [KeyRecord(name, _plain(key), _plain_group(group)) for name, key, group in notes]
            )
            if notes
            else (),
            window=window,
            blocker=journal.blocker,
            head=None if head is None else head.sample_id,
            waiting=scheduler.num_waiting,
            running=scheduler.num_running,
            free=scheduler.allocator.num_available,
        )

    def _paused(self) -> tuple[str, ...]:
        running = self._scheduler.running
        if not running.has_paused:
            return ()
        return tuple(self.ids[row] for row in np.flatnonzero(running.rows.paused).tolist())

    def _prefills(self, plan: StepPlan) -> tuple[Any, Any]:
        """Chunks of prefills that go on, and new rows: the last rows of the plan."""
        first, num_decodes = len(plan.rows) - len(plan.new), plan.num_decodes
        chunks: tuple[tuple[str, int], ...] = ()
        if first > num_decodes:
            rows, counts = plan.rows[num_decodes:first], plan.num_tokens[num_decodes:first]
            pairs = zip(rows.tolist(), counts.tolist(), strict=True)
            chunks = tuple([(self.ids[row], count) for row, count in pairs])
        if not plan.new:
            return chunks, ()
        starts, counts = plan.starts[first:].tolist(), plan.num_tokens[first:].tolist()
        new: list[NewRecord] = []
        for row, start, count in zip(plan.new, starts, counts, strict=True):
            self.ids[row.row] = row.request_id
            new.append(NewRecord(row.request_id, start, count))
        return chunks, tuple(new)


def _plain(key: object) -> object:
    """A key as JSON keeps it: infinities, which JSON lacks, as text."""
    if type(key) is int or type(key) is str:
        return key
    if is_list(key):
        return [_plain(part) for part in key]
    item: Any = getattr(key, "item", None)  # of a scalar of numpy
    value: object = key if item is None else item()
    if isinstance(value, float):
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    return value if isinstance(value, (int, str)) else repr(value)


def _plain_group(group: Hashable) -> object:
    return None if group is None else _plain(group)
