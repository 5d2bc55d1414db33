"""How long work says how far it is, and the bar that shows it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

ProgressReport: TypeAlias = Callable[[int, int, str], None]
"""Called with how much is done, of how much, and a text: what comes next, or how fast it goes."""


def silent(done: int, total: int, what: str) -> None:
    """A `ProgressReport` that shows nothing."""


@contextmanager
def progress_bar(
    *, refresh_per_second: float | None, transient: bool = False
) -> Generator[ProgressReport]:
    """A bar on standard error, which shows what it is told.

    Args:
        refresh_per_second: how often a thread draws it; None: no thread, each report draws it.
        transient: remove the bar at the end.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=refresh_per_second is not None,
        refresh_per_second=refresh_per_second or 10,
        transient=transient,
    ) as shown:
        bar = shown.add_task("", total=None)

        def report(done: int, total: int, what: str) -> None:
            shown.update(
                bar,
                completed=done,
                total=total,
                description=what,
                refresh=refresh_per_second is None,
            )

        yield report
