"""When the tokens of a run came: the gaps between them, and how many came in a time."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.arrays import FloatArray, IntArray
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.stride import Stride


@dataclass(slots=True)
class _StepInFlight:
    """A submitted step.

    Attributes:
        rows: those that sample.
        same_rows: they are those of the step before.
        surplus: rows whose requests have finished since.
    """

    rows: IntArray
    same_rows: bool
    surplus: list[int] = field(default_factory=list[int])

    def tokens(self, result: StepResult) -> IntArray:
        """Rows that got a token which counts."""
        rows = self.rows if result.failed is None else self.rows[~result.failed]
        for row in self.surplus:  # hardly more than one
            rows = rows[rows != row]
        return rows


class TokenTimes(StepObserver):
    """Notes when tokens came. Adds a few microseconds to a step.

    Attributes:
        num_steps: collected so far.
    """

    def __init__(self) -> None:
        self._last: FloatArray = np.full(1024, np.nan)  # when each row's last token came
        self._row_ids: dict[int, str] = {}
        self._row_of: dict[str, int] = {}  # by the ids of requests with a row
        self._finished: set[str] = set()  # of them, those that will not come back
        self._preempted: dict[str, float] = {}  # the last token's time of those that come back
        self._in_flight: deque[_StepInFlight] = deque()
        # of each step: when its tokens came, how many, the time since the step before, and how
        # many of them follow a token of that step
        self._times, self._gaps = array("d"), array("d")
        self._nums, self._num_usual = array("q"), array("q")
        self._longer, self._longer_ends = array("d"), array("d")  # other gaps, when they ended
        self._collected_at = 0.0
        self.num_steps: int = 0

    def submitted(self, plan: StepPlan, now: float) -> None:
        for row in plan.removed.tolist():
            self._release_row(row, self._row_ids.pop(row, None))
        for new in plan.new:
            if new.row >= len(self._last):
                self._last = np.concatenate((self._last, np.full(new.row, np.nan)))
            self._last[new.row] = self._preempted.pop(new.request_id, np.nan)
            self._row_ids[new.row] = new.request_id
            self._row_of[new.request_id] = new.row
        self._in_flight.append(_StepInFlight(plan.sampled_rows, plan.same_rows))

    def _release_row(self, row: int, request_id: str | None) -> None:
        """A row is free: its request was preempted, or has finished."""
        if request_id is None:  # it ran before this observer watched
            return
        if self._row_of.get(request_id) == row:
            del self._row_of[request_id]
        if request_id in self._finished:
            self._finished.discard(request_id)
        else:
            self._preempted[request_id] = float(self._last[row])

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        step = self._in_flight.popleft()
        self._note(step, step.tokens(result), now)

    def _note(self, step: _StepInFlight, rows: IntArray, now: float) -> None:
        num_usual = len(rows)
        if not step.same_rows:  # else all of them got a token in the step before
            last = self._last[rows]
            is_usual = last == self._collected_at
            num_usual = int(np.count_nonzero(is_usual))
            if num_usual < len(rows):
                self._note_longer(now, last[~is_usual])
        self._last[rows] = now
        self._times.append(now)
        self._nums.append(len(rows))
        self._gaps.append(now - self._collected_at)
        self._num_usual.append(num_usual)
        self._collected_at = now
        self.num_steps += 1

    def strode(self, stride: Stride) -> None:
        rows, times, in_flight = stride.rows, stride.collected, len(self._in_flight)
        for now in times[:in_flight]:
            self._note(self._in_flight.popleft(), rows, now)
        times = times[in_flight:]
        gaps = np.diff(times, prepend=self._collected_at).tolist()
        counts = [len(rows)] * len(times)
        self._times.extend(times)
        self._gaps.extend(gaps)
        self._nums.extend(counts)
        self._num_usual.extend(counts)
        self._last[rows] = self._collected_at = times[-1]
        self.num_steps += len(times)
        self._in_flight.extend([_StepInFlight(rows, True) for _ in range(in_flight)])

    def _note_longer(self, now: float, last: FloatArray) -> None:
        gaps: list[float] = (now - last[~np.isnan(last)]).tolist()
        self._longer.extend(gaps)
        self._longer_ends.extend([now] * len(gaps))

    def finished(self, output: RequestOutput) -> None:
        request_id = output.id
        self._preempted.pop(request_id, None)
        row = self._row_of.get(request_id)
        if row is not None:  # it is released by a later plan
            self._finished.add(request_id)
            for step in self._in_flight:  # what they still sample for it does not count
                step.surplus.append(row)

    def gaps(self, start: float, end: float) -> tuple[FloatArray, FloatArray]:
        """Gaps between tokens of one request that ended in [start, end], and their weights."""
        times, counts = np.array(self._times), np.array(self._num_usual, np.float64)
        inside = (times >= start) & (times <= end) & (counts > 0)
        ends = np.array(self._longer_ends)
        longer = np.array(self._longer)[(ends >= start) & (ends <= end)]
        values = np.concatenate((np.array(self._gaps)[inside], longer))
        weights = np.ones(len(values))
        weights[: np.count_nonzero(inside)] = counts[inside]
        return values, weights

    def num_tokens(self, start: float, end: float) -> int:
        """Tokens that came in [start, end]."""
        times = np.array(self._times)
        inside = (times >= start) & (times <= end)
        return int(np.array(self._nums, np.int64)[inside].sum())
