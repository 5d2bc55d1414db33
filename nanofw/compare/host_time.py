"""How long the scheduler itself took: a policy's own time, which virtual time does not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nanofw.engine.engine import Engine


class HostTime:
    """Real seconds in which an engine accepted requests, planned and committed steps.

    Args:
        is_added: let the engine's virtual clock take that time, too.

    Attributes:
        seconds: so far.
        fewest_available: the smallest share of the KV pool that was available after a plan.
    """

    def __init__(self, engine: Engine, is_added: bool) -> None:
        self._engine, self._is_added = engine, is_added
        self.seconds = 0.0
        self.fewest_available = 1.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what the engine does in the block."""
        scheduler = self._engine.scheduler
        places = ((self._engine, "add_request"), (scheduler, "plan_step"),
                  (scheduler, "commit_step"))  # fmt: skip
        for owner, method in places:
            setattr(owner, method, self._timed(getattr(owner, method), method == "plan_step"))
        try:
            yield
        finally:
            for owner, method in places:
                delattr(owner, method)

    def _timed(self, method: Callable[..., Any], is_plan: bool) -> Callable[..., Any]:
        clock, scheduler = self._engine.clock, self._engine.scheduler
        num_blocks = max(scheduler.limits.num_blocks, 1)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments, **keywords)
            finally:
                took = time.perf_counter() - began
                self.seconds += took
                if self._is_added:
                    clock.wait_until(clock.now() + took)
                if is_plan:
                    share = scheduler.allocator.num_available / num_blocks
                    self.fewest_available = min(self.fewest_available, share)

        return timed
