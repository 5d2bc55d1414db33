"""A live line on standard error: requests done, prefill and decode throughput."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from nanofw.contracts.outputs import StepReport

if TYPE_CHECKING:
    from rich.progress import Progress

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


class ProgressBar:
    """A context manager around the steps of a run; it shows nothing when it is not enabled.

    Args:
        total: requests of the run.
        enabled: False shows nothing and imports nothing.
    """

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._throughput = Throughput()
        self._num_done = 0
        self._next_refresh = 0.0
        self._bar = _make_bar() if enabled else None
        self._task = self._bar.add_task("", total=total, speed="") if self._bar else None

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._refresh()
            self._bar.stop()

    def update(self, num_finished: int, report: StepReport | None) -> None:
        """Tell of one step."""
        if self._bar is None:
            return
        self._num_done += num_finished
        if report is not None:
            self._throughput.add(report)
        now = time.monotonic()
        if now >= self._next_refresh:
            self._next_refresh = now + 1 / REFRESH_PER_SECOND
            self._refresh(report)

    def _refresh(self, report: StepReport | None = None) -> None:
        assert self._bar is not None
        assert self._task is not None
        prefill, decode = self._throughput.rates()
        speed = f"prefill {prefill:,.0f} tok/s · decode {decode:,.0f} tok/s"
        if report is not None:
            speed += f" · running {report.num_running} · waiting {report.num_waiting}"
        self._bar.update(self._task, completed=self._num_done, speed=speed, refresh=True)


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("requests · {task.fields[speed]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
