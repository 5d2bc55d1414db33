"""How long the scheduler itself took: a policy's own time, which virtual time does not see."""

from __future__ import annotations

import time
from collections.abc import Collection

from nanofw.contracts.observer import StepObserver
from nanofw.engine.engine import Engine


class HostTime(StepObserver):
    """Real seconds in which an engine accepted requests, planned and committed steps.

    Args:
        is_added: let the engine's virtual clock take that time, too.

    Attributes:
        seconds: so far.
        fewest_available: the smallest share of the KV pool that was available after a plan.
    """

    phases: Collection[str] = ("accept", "plan", "commit")

    def __init__(self, engine: Engine, is_added: bool) -> None:
        self._clock, self._scheduler, self._is_added = engine.clock, engine.scheduler, is_added
        self._num_blocks = max(engine.scheduler.limits.num_blocks, 1)
        self._began = 0.0
        self.seconds: float = 0.0
        self.fewest_available: float = 1.0

    def began(self, phase: str) -> None:
        self._began = time.perf_counter()

    def ended(self, phase: str) -> None:
        took = time.perf_counter() - self._began
        self.seconds += took
        if self._is_added:
            self._clock.wait_until(self._clock.now() + took)
        if phase == "plan":
            share = self._scheduler.allocator.num_available / self._num_blocks
            self.fewest_available = min(self.fewest_available, share)
