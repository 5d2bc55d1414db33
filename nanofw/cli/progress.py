"""How far a long command is, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from nanofw.measure.progress import ProgressReport, progress_bar


@contextmanager
def progress(
    refresh_per_second: float = 10, seconds_between_lines: float = 30
) -> Generator[ProgressReport]:
    """A bar on standard error where that is a terminal; elsewhere a line now and then."""
    from rich.console import Console

    if not Console(stderr=True).is_terminal:
        yield _lines(seconds_between_lines)
        return
    with progress_bar(refresh_per_second=refresh_per_second) as report:
        yield report


def _lines(seconds_between: float) -> ProgressReport:
    """Tells how far it is, for a log; short work leaves none."""
    last = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        if what and time.monotonic() - last >= seconds_between:
            last = time.monotonic()
            print(f"nanofw: {done} of {total} done, now {what}", file=sys.stderr, flush=True)

    return report
