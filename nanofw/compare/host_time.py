"""How long the scheduler itself took: a policy's own time, which virtual time does not see."""

from __future__ import annotations

import time
from collections.abc import Collection

from nanofw.contracts.observer import StepObserver
from nanofw.contracts.stride import Stride
from nanofw.engine.engine import Engine


class HostTime(StepObserver):
    """Real seconds in which an engine accepted requests, planned and committed steps.

    Steps that a simulation took at once count as many as were taken one by one did on average:
    in a real run each of them takes the scheduler's time.

    Attributes:
        seconds: so far.
        fewest_available: the smallest share of the KV pool that was available after a plan.
    """

    phases: Collection[str] = ("accept", "plan", "commit")

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self._num_blocks = max(engine.scheduler.limits.num_blocks, 1)
        self._began = 0.0
        self._step_seconds, self._num_steps = 0.0, 0  # of steps that were taken one by one
        self.seconds: float = 0.0
        self.fewest_available: float = 1.0

    def began(self, phase: str) -> None:
        self._began = time.perf_counter()

    def ended(self, phase: str) -> None:
        self._note(phase, time.perf_counter() - self._began)

    def _note(self, phase: str, took: float) -> None:
        self.seconds += took
        if phase != "accept":
            self._step_seconds += took
        if phase == "plan":
            self._num_steps += 1
            self._note_available()

    def _note_available(self) -> None:
        share = self._scheduler.allocator.num_available / self._num_blocks
        self.fewest_available = min(self.fewest_available, share)

    def strode(self, stride: Stride) -> None:
        self.seconds += len(stride) * self._step_seconds / max(self._num_steps, 1)
        self._note_available()


class AddedHostTime(HostTime):
    """The same, added to the engine's virtual clock: every step is taken for itself."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._clock = engine.clock

    def ended(self, phase: str) -> None:
        took = time.perf_counter() - self._began
        self._clock.wait_until(self._clock.now() + took)
        self._note(phase, took)
