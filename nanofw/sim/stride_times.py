"""When the steps of a stride are planned, submitted and collected, without a clock that moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from nanofw.contracts.clock import Clock, VirtualClock


class StrideTimes:
    """What `submit` and `collect` of the simulated executor do to the time, step by step.

    Attributes:
        planned, submitted, collected: seconds on the clock, once for each step taken.
        done: when the steps in flight will be done.
        busy_until: when the device will be done with all of them.
    """

    def __init__(self, now: float, busy_until: float, done: Iterable[float]) -> None:
        self._now = now
        self.busy_until: float = busy_until
        self.done: deque[float] = deque(done)
        self.planned: list[float] = []
        self.submitted: list[float] = []
        self.collected: list[float] = []

    def pass_steps(self, host: Sequence[float], seconds: Sequence[float], until: float) -> None:
        """Steps with their seconds, on the host (empty: no time) and on the device; those that
        would be planned at `until` or later are not taken."""
        now, busy_until, done = self._now, self.busy_until, self.done
        for i, step_seconds in enumerate(seconds):
            if now >= until:
                break
            started = now
            self.planned.append(now)
            if host:
                now = max(now, started + host[i])
            self.submitted.append(now)
            busy_until = max(max(busy_until, started) + step_seconds, now)
            done.append(busy_until)
            now = max(now, done.popleft())
            self.collected.append(now)
        self._now, self.busy_until = now, busy_until


def is_moved_only(clock: Clock) -> bool:
    """Whether the clock stands still until it is moved, and jumps where it is moved to."""
    kind, own = type(clock), getattr(clock, "__dict__", {})
    return isinstance(clock, VirtualClock) and all(
        getattr(kind, name) is getattr(VirtualClock, name) and name not in own
        for name in ("now", "wait_until")
    )
