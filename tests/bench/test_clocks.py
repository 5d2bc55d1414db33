"""The clock of the process's own time."""

from __future__ import annotations

import time

from benchmarks.sim.clocks import ProcessClock


def test_waiting_is_skipped_and_work_is_counted() -> None:
    clock, wall = ProcessClock(), time.monotonic()
    start = clock.now()
    clock.wait_until(start + 1000.0)
    assert clock.now() - start >= 1000.0
    assert time.monotonic() - wall < 60.0
    clock.wait_until(start)
    before = clock.now()
    sum(range(300_000))
    assert clock.now() > before
