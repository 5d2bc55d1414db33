"""Time as a seam: an engine reads a clock, and a simulated run moves it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the engine and the executor read the time, in seconds, monotonic."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never decreases."""
        ...

    def wait_until(self, deadline: float) -> None:
        """Return when `now() >= deadline`: sleeps in real time, jumps in virtual time."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, deadline: float) -> None:
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left)


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wait_until(self, deadline: float) -> None:
        self._now = max(self._now, deadline)
