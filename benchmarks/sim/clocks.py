"""Clocks for measuring: on a machine that others use too, or without the time to wake up."""

from __future__ import annotations

import time


class ProcessClock:
    """Counts the processor time of this process; waiting is skipped, not slept.

    A run on the CPU with one thread takes as long on it as on an idle machine, whatever runs
    beside it, as far as caches and shared cores allow. Of no use where a device computes.
    """

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.process_time() + self._skipped

    def wait_until(self, deadline: float) -> None:
        self._skipped += max(0.0, deadline - self.now())


class PreciseClock:
    """The machine's monotonic clock; the last millisecond of a wait is spent awake.

    A thread that sleeps wakes up some 0.1 ms late, which a first token of 5 ms shows.
    """

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, deadline: float) -> None:
        while (left := deadline - time.monotonic()) > 0:
            if left > 1e-3:
                time.sleep(left - 1e-3)
