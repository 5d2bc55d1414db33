"""A clock for measuring on a machine that others use too."""

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
