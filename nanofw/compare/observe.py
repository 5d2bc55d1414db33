"""Watch a run from outside: an executor that hands everything on and notes when tokens came."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from nanofw.core.clock import Clock
from nanofw.core.contracts.executor import Executor
from nanofw.core.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.core.types import FloatArray, IntArray, LongArray, Request


@dataclass(slots=True)
class _Tokens:
    """Tokens that came at one time: gaps since the token before, `repeat` times each."""

    time: float
    num_tokens: int
    gaps: FloatArray
    repeat: int


class ObservedExecutor:
    """Implements `Executor` around another one. Adds a few microseconds to a step.

    Attributes:
        num_steps: collected so far.
        service: what each client was served.
    """

    def __init__(self, inner: Executor, clock: Clock) -> None:
        self._inner, self._clock = inner, clock
        self._last: FloatArray = np.full(1024, np.nan)  # when each row's last token came
        self._row_ids: dict[int, str] = {}
        self._left: dict[str, float] = {}  # the same of requests that left their row
        self._pending: deque[tuple[IntArray, bool]] = deque()
        self._tokens: list[_Tokens] = []
        self._collected_at = 0.0
        self.num_steps = 0
        self.service = Service()

    def submit(self, plan: StepPlan) -> None:
        for row in plan.removed.tolist():
            request_id = self._row_ids.pop(row, None)
            if request_id is not None:  # else it ran before anybody watched
                self._left[request_id] = float(self._last[row])
        for new in plan.new:
            if new.row >= len(self._last):
                self._last = np.concatenate((self._last, np.full(new.row, np.nan)))
            self._last[new.row] = self._left.pop(new.request_id, np.nan)
            self._row_ids[new.row] = new.request_id
        self._pending.append((plan.sampled_rows, plan.same_rows))
        self.service.note(plan)
        self._inner.submit(plan)

    def collect(self) -> StepResult:
        result = self._inner.collect()
        now = self._clock.now()
        rows, same = self._pending.popleft()
        if same:  # all of them got a token in the step before
            gaps, repeat = np.array([now - self._collected_at]), len(rows)
        else:
            gaps, repeat = now - self._last[rows], 1
            gaps = gaps[~np.isnan(gaps)]
        self._last[rows] = now
        self._tokens.append(_Tokens(now, len(rows), gaps, repeat))
        self._collected_at = now
        self.num_steps += 1
        return result

    def ended(self, request_id: str) -> None:
        """The request has finished: forget it."""
        self._left.pop(request_id, None)
        self.service.end(request_id)

    def gaps(self, start: float, end: float) -> tuple[FloatArray, FloatArray]:
        """Gaps between tokens of one request that ended in [start, end], and their weights."""
        inside = [item for item in self._tokens if start <= item.time <= end and len(item.gaps)]
        if not inside:
            return np.empty(0), np.empty(0)
        values = np.concatenate([item.gaps for item in inside])
        weights = np.repeat(
            [float(item.repeat) for item in inside], [len(item.gaps) for item in inside]
        )
        return values, weights

    def num_tokens(self, start: float, end: float) -> int:
        """Tokens that came in [start, end]."""
        return sum(item.num_tokens for item in self._tokens if start <= item.time <= end)

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def check(self, request: Request) -> None:
        self._inner.check(request)

    def provide(self, masks: HostMasks) -> None:
        self._inner.provide(masks)

    def close(self) -> None:
        self._inner.close()


class Service:
    """Tokens computed for each client, and the gap between clients that are all kept waiting.

    The gap is that of Sheng et al. (OSDI 2024): over any time in which all clients have
    requests waiting, the greatest difference between the tokens that they were served. With
    one client nothing is counted.

    Attributes:
        total: float64[c], tokens computed by client.
        max_gap: in tokens; 0 when they never all waited.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._client_of: dict[str, int] = {}
        self._of_row: LongArray = np.zeros(1024, np.int64)
        self._not_started: set[str] = set()
        self._num_waiting: list[int] = []
        self._since: FloatArray | None = None
        self.total: FloatArray = np.zeros(0)
        self.max_gap = 0.0

    @property
    def clients(self) -> list[str]:
        """Names, in the order of `total`."""
        return list(self._numbers)

    def accept(self, request: Request) -> None:
        """A request was handed to the engine."""
        if request.client not in self._numbers:
            self._numbers[request.client] = len(self._numbers)
            self._num_waiting.append(0)
            self.total = np.append(self.total, 0.0)
            self._since = None
        number = self._client_of[request.id] = self._numbers[request.client]
        self._not_started.add(request.id)
        self._num_waiting[number] += 1

    def end(self, request_id: str) -> None:
        """A request has finished, or ended before it ever ran."""
        number = self._client_of.pop(request_id, None)
        if number is not None and request_id in self._not_started:
            self._start(request_id, number)

    def note(self, plan: StepPlan) -> None:
        """A plan was made: its new rows wait no longer, its tokens are service."""
        for new in plan.new:
            number = self._client_of.get(new.request_id)
            if number is None:
                continue
            if new.request_id in self._not_started:
                self._start(new.request_id, number)
            if new.row >= len(self._of_row):
                self._of_row = np.concatenate((self._of_row, np.zeros(new.row, np.int64)))
            self._of_row[new.row] = number
        if len(self._numbers) < 2:
            return
        owners = self._of_row[plan.rows]
        self.total = self.total + np.bincount(owners, plan.num_tokens, len(self.total))
        self._note_gap()

    def _start(self, request_id: str, number: int) -> None:
        self._not_started.discard(request_id)
        self._num_waiting[number] -= 1

    def _note_gap(self) -> None:
        if min(self._num_waiting) <= 0:
            self._since = None
            return
        if self._since is None:
            self._since = self.total
        served = self.total - self._since
        self.max_gap = max(self.max_gap, float(served.max() - served.min()))
