"""Tables, JSON and numbers on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nanofw.cli.stdout import stdout

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_OF_A_FILE = 200
"""Characters of a line of a table that no terminal shows."""


def console() -> Console:
    """Standard output for tables: as wide as it needs to be when it is not a terminal."""
    from rich.console import Console

    class Standard(Console):
        """Rich ends the process where the reader is gone; commands end with their exit code."""

        def on_broken_pipe(self) -> None:
            raise  # the error that is being handled

    out = stdout()
    width = None if out.isatty() else WIDTH_OF_A_FILE
    return Standard(file=out, width=width, highlight=False, markup=False, soft_wrap=False)


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = False,
) -> Table:
    """A table without the columns in which no row says anything.

    Args:
        numbers: in all columns but the first, which are then aligned on the right.
    """
    from rich import box
    from rich.table import Table

    lines = [tuple(row) for row in rows]
    shown = [place for place in range(len(columns)) if any(line[place] for line in lines)]
    made = Table(*(columns[place] for place in shown), title=title, title_justify="left",
                 box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    for place, column in enumerate(made.columns):
        column.overflow = "fold"  # a name or a command that is cut cannot be used
        if numbers and place:
            column.justify = "right"
    for line in lines:
        made.add_row(*(line[place] for place in shown))
    return made


def print_json(value: object) -> None:
    """Write plain values as JSON to standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str), file=stdout())


def readable_bytes(count: int) -> str:
    """`1536` as `1.5 KiB`: three digits, in the unit that suits the size."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"


def readable_number(value: float) -> str:
    """At least three digits; `0` only for zero itself."""
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:#.3g}"


def readable_percent(share: float) -> str:
    """A share without digits after the point; `<1%` for what would round to nothing."""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
