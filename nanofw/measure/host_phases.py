"""The engine's host phases: where they begin and end, and how long they take."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from nanofw.engine.engine import Engine

STEP = "step"
TOP_PHASES = ("plan", "submit", "provide", "collect", "commit", "output")
"""Phases of a step that follow each other. With requests that come, `accept` precedes them."""
SUBMIT = "submit."
"""Phases of an executor that says what they are begin with it."""

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def seams(engine: Engine) -> Iterator[tuple[str, Any, str]]:
    """Phase, object and method of each part of a step.

    An executor may name parts of its own in `host_phases`: name -> (object, method).
    """
    yield STEP, engine, "step"
    yield "accept", engine, "add_request"
    yield "plan", engine.scheduler, "plan_step"
    for name in ("submit", "provide", "collect"):
        yield name, engine.executor, name
    yield "commit", engine.scheduler, "commit_step"
    yield "output", engine, "take_finished"
    for name, (owner, method) in getattr(engine.executor, "host_phases", {}).items():
        yield SUBMIT + name, owner, method


@contextmanager
def instrumented(engine: Engine, wrap: Wrap) -> Generator[None]:
    """Within it every phase goes through `wrap(name, method)`; outside nothing is left of it.

    Objects that take no attributes are left as they are: their phases are not seen.
    """
    with ExitStack() as stack:
        for name, owner, method in seams(engine):
            before = getattr(owner, method)
            was_own = method in getattr(owner, "__dict__", {})
            with suppress(AttributeError):
                setattr(owner, method, wrap(name, before))
                if was_own:
                    stack.callback(setattr, owner, method, before)
                else:
                    stack.callback(delattr, owner, method)
        yield


class PhaseTimes:
    """Seconds and calls by phase, of the runs that it is told to `watch`."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def watch(self, engine: Engine) -> Any:
        """A context manager."""
        return instrumented(engine, self._timed)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        seconds, calls, clock = self.seconds, self.calls, time.perf_counter

        def timed(*arguments: Any, **keywords: Any) -> Any:
            begin = clock()
            try:
                return method(*arguments, **keywords)
            finally:
                seconds[name] += clock() - begin
                calls[name] += 1

        return timed


def spans(engine: Engine) -> Any:
    """A context manager within which phases are spans of PyTorch's profiler (`nanofw.plan`, …)."""
    from torch.profiler import record_function

    def spanned(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        title = f"nanofw.{name}"

        def run(*arguments: Any, **keywords: Any) -> Any:
            with record_function(title):
                return method(*arguments, **keywords)

        return run

    return instrumented(engine, spanned)
