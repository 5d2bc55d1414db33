"""A live line on standard error: requests done, prefill and decode throughput."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from nanofw.contracts.outputs import StepReport
from nanofw.measure.progress import ProgressReport, progress_bar

WINDOW_S = 2.0
"""Seconds over which the throughput is a mean."""
REFRESH_PER_SECOND = 8


class Throughput:
    """Tokens per second over the last steps, on the engine's clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._steps: deque[tuple[float, int, int]] = deque()
        self._num_prefill, self._num_decode = 0, 0

    def add(self, report: StepReport) -> None:
        self._steps.append((report.committed, report.num_prefill_tokens, report.num_decode_tokens))
        self._num_prefill += report.num_prefill_tokens
        self._num_decode += report.num_decode_tokens
        while len(self._steps) > 1 and self._steps[0][0] < report.committed - self._window_s:
            _, num_prefill, num_decode = self._steps.popleft()
            self._num_prefill -= num_prefill
            self._num_decode -= num_decode

    def rates(self) -> tuple[float, float]:
        """Prefill and decode tokens per second; 0 before there are two steps."""
        if len(self._steps) < 2:
            return 0.0, 0.0
        first, num_prefill, num_decode = self._steps[0]
        seconds = self._steps[-1][0] - first
        if seconds <= 0:
            return 0.0, 0.0
        return (self._num_prefill - num_prefill) / seconds, (
            self._num_decode - num_decode
        ) / seconds


class RunProgress:
    """How many requests are done and how fast it goes, told to a bar now and then.

    Args:
        total: requests of the run.
        report: draws the bar; None: no bar.
    """

    def __init__(self, total: int, report: ProgressReport | None) -> None:
        self._total, self._report = total, report
        self._throughput = Throughput()
        self._num_done = 0
        self._next_refresh = 0.0

    def update(self, num_finished: int, report: StepReport | None) -> None:
        """Tell of one step."""
        if self._report is None:
            return
        self._num_done += num_finished
        if report is not None:
            self._throughput.add(report)
        now = time.monotonic()
        if now >= self._next_refresh or self._num_done == self._total:
            self._next_refresh = now + 1 / REFRESH_PER_SECOND
            prefill, decode = self._throughput.rates()
            text = f"requests · prefill {prefill:,.0f} tok/s · decode {decode:,.0f} tok/s"
            if report is not None:
                text += f" · running {report.num_running} · waiting {report.num_waiting}"
            self._report(self._num_done, self._total, text)


@contextmanager
def run_progress(total: int, *, enabled: bool) -> Generator[RunProgress]:
    """Around the steps of a run; when it is not enabled it shows and imports nothing."""
    if not enabled:
        yield RunProgress(total, None)
        return
    with progress_bar(refresh_per_second=None, transient=True) as report:
        yield RunProgress(total, report)
