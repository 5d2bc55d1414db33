"""Time as a seam: an engine reads a clock, and a simulated run moves it."""

from __future__ import annotations

import logging
import time
from typing import Protocol

logger: logging.Logger = logging.getLogger(__name__)

MAX_LAG_S = 0.25
"""Seconds that a `PacedClock` may be behind the machine's before it is moved on."""


class Clock(Protocol):
    """The clock of the engine and the executor, in seconds. It never goes back."""

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


class PacedClock:
    """Modelled time that follows the machine's clock, for simulated runs with callers.

    Like a `VirtualClock` it moves only when it is told to. Then it waits until the machine's clock
    shows the same time. So the work of the host between two steps costs no modelled time, and the
    host can catch up if it is late. If it is late by more than `MAX_LAG_S`, the clock jumps to the
    machine's time.

    Attributes:
        machine: the machine's clock, which callers use; the times of requests are on this clock.
    """

    def __init__(self, machine: Clock | None = None) -> None:
        self.machine: Clock = machine or RealClock()
        self._now = self.machine.now()
        self._was_moved_on = False

    def now(self) -> float:
        return self._now

    def wait_until(self, deadline: float) -> None:
        self.machine.wait_until(deadline)
        late = self.machine.now() - max(deadline, self._now)
        self._now = max(self._now, deadline)
        if late > MAX_LAG_S:
            self._now += late
            level = logging.DEBUG if self._was_moved_on else logging.WARNING
            self._was_moved_on = True
            logger.log(
                level,
                "the modelled machine is faster than this one, which is %.3f s behind: the "
                "modelled time was moved on, and times include this machine's",
                late,
            )
