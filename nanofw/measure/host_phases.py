"""The engine's host phases: where they begin and end, and how long they take."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nanofw.contracts.observer import PHASES, StepObserver
from nanofw.engine.engine import Engine

STEP = "step"
TOP_PHASES = ("plan", "submit", "provide", "collect", "commit", "output")
"""Phases of a step that follow each other. With requests that come, `accept` precedes them."""
SUBMIT = "submit."
"""Parts of `submit`, where the executor says what they are, begin with it."""


class PhaseTimes(StepObserver):
    """Seconds and calls by phase, of the runs that it is told to `watch`."""

    phases: Collection[str] = PHASES

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._begins: list[float] = []  # of the phases that are open, the inner ones last

    @contextmanager
    def watch(self, engine: Engine) -> Generator[None]:
        """Within it the engine's phases are timed, and the parts that its executor tells."""
        before = engine.executor_facts().host_phases
        with engine.observed_by(self):
            yield
        for name, seconds in engine.executor_facts().host_phases.items():
            self.seconds[SUBMIT + name] += seconds - before.get(name, 0.0)

    def began(self, phase: str) -> None:
        self._begins.append(time.perf_counter())

    def ended(self, phase: str) -> None:
        self.seconds[phase] += time.perf_counter() - self._begins.pop()
        self.calls[phase] += 1


def spans(engine: Engine) -> AbstractContextManager[None]:
    """A context manager within which phases are spans of PyTorch's profiler (`nanofw.plan`, …)."""
    return engine.observed_by(_Spans())


class _Spans(StepObserver):
    """Opens and closes a span for each phase."""

    phases: Collection[str] = PHASES

    def __init__(self) -> None:
        from torch.profiler import record_function

        self._make, self._open = record_function, list[Any]()

    def began(self, phase: str) -> None:
        span = self._make(f"nanofw.{phase}")
        span.__enter__()
        self._open.append(span)

    def ended(self, phase: str) -> None:
        self._open.pop().__exit__(None, None, None)
