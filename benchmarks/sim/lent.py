"""One real executor for many engines: weights, memory profile and graphs are paid for once."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np

from nanofw.assembly import Selection, build, build_on
from nanofw.contracts.clock import Clock
from nanofw.contracts.executor import Executor, ExecutorFacts
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.engine.engine import Engine


class LentExecutor(Executor):
    """An executor that one engine after another uses as if it were new.

    Each engine counts its steps from 0 and starts with empty rows; the executor behind sees one
    run without a gap. Closing is the owner's part.
    """

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._first = self._next = 0
        self._rows: set[int] = set()
        self._left: list[int] = []

    def lend(self) -> None:
        """The engine before has ended, with nothing in flight."""
        self._first, self._left = self._next, sorted({*self._left, *self._rows})
        self._rows.clear()

    def submit(self, plan: StepPlan) -> None:
        self._rows.difference_update(plan.removed.tolist())
        self._rows.update(new.row for new in plan.new)
        removed = plan.removed
        if self._left:
            removed, self._left = np.array(self._left, np.int32), []
        self._inner.submit(replace(plan, step=self._first + plan.step, removed=removed))
        self._next = self._first + plan.step + 1

    def collect(self) -> StepResult:
        result = self._inner.collect()
        result.step -= self._first
        return result

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def check(self, request: Request) -> None:
        self._inner.check(request)

    def provide(self, masks: HostMasks) -> None:
        self._inner.provide(replace(masks, step=self._first + masks.step))

    def facts(self) -> ExecutorFacts:
        return self._inner.facts()

    def close(self) -> None:
        """Nothing: the owner closes what it lends."""


class RealEngines:
    """Fresh engines, with empty caches, around one executor."""

    def __init__(self, selection: Selection, clock: Clock | None) -> None:
        first = build(selection, clock=clock)
        self.clock = first.clock
        self._executor = first.executor
        self._lent = LentExecutor(self._executor)
        # A full collection looks at every object that torch made: a tenth of a second, at any time.
        gc.collect()
        gc.freeze()

    @property
    def graph_steps(self) -> dict[str, int]:
        """Steps replayed from CUDA graphs, and the others by reason, where there are any."""
        return dict(self._executor.facts().graph_steps)

    def engine(self, selection: Selection) -> Engine:
        """For a selection that differs from the first one in its policy alone."""
        self._lent.lend()
        return build_on(selection, self._lent, self.clock)

    def close(self) -> None:
        gc.unfreeze()
        self._executor.close()
