"""Watch a run from outside: executors that hand everything on and note what they see."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from nanofw.core.clock import Clock
from nanofw.core.contracts.executor import Executor
from nanofw.core.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.core.types import FloatArray, IntArray, Request


class PassingExecutor:
    """Implements `Executor` by handing everything on to another one. Base of those that watch."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    def submit(self, plan: StepPlan) -> None:
        self.inner.submit(plan)

    def collect(self) -> StepResult:
        return self.inner.collect()

    def capacity(self) -> Capacity:
        return self.inner.capacity()

    def check(self, request: Request) -> None:
        self.inner.check(request)

    def provide(self, masks: HostMasks) -> None:
        self.inner.provide(masks)

    def close(self) -> None:
        self.inner.close()


@dataclass(slots=True)
class _Tokens:
    """Tokens that came at one time: gaps since the token before, `repeat` times each."""

    time: float
    num_tokens: int
    gaps: FloatArray
    repeat: int


class TokenTimes(PassingExecutor):
    """Notes when tokens came. Adds a few microseconds to a step.

    Attributes:
        num_steps: collected so far.
    """

    def __init__(self, inner: Executor, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._last: FloatArray = np.full(1024, np.nan)  # when each row's last token came
        self._row_ids: dict[int, str] = {}
        self._left: dict[str, float] = {}  # the same of requests that left their row
        self._pending: deque[tuple[IntArray, bool]] = deque()
        self._tokens: list[_Tokens] = []
        self._collected_at = 0.0
        self.num_steps = 0

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
        super().submit(plan)

    def collect(self) -> StepResult:
        result = super().collect()
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
