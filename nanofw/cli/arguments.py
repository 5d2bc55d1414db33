"""What commands share: a configuration and `key=value` pairs, tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nanofw.configs.load import LoadedConfig

WIDTH_OF_A_FILE = 200
"""Characters of a line of a table that no terminal shows."""
CONFIG_WORDS = "[CONFIG] [KEY=VALUE ...]"
CONFIG_HELP = "a YAML file or a preset's name (default: the preset qwen3-demo), then KEY=VALUE"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Let a parser take `[CONFIG] [key=value ...]`. Parse with `parse_intermixed_args`."""
    parser.usage = f"{parser.prog} {CONFIG_WORDS} [OPTIONS]"
    parser.add_argument("config", nargs="*", metavar=CONFIG_WORDS, help=CONFIG_HELP)


def split_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration's name, or None, and the `key=value` pairs."""
    from nanofw.configs.layers import is_override, looks_like_file
    from nanofw.errors import ConfigError

    names = [word for word in words if not is_override(word)]
    for name in names:
        if "=" in name and not looks_like_file(name):
            raise ConfigError(
                f"{name!r} is not of the form key=value, with a key such as engine.seed; a list "
                f"is replaced as a whole",
                source="command line",
            )
    if len(names) > 1:
        raise ConfigError(
            f"one configuration at most, not {' and '.join(names)}; put the others into its "
            f"key base, or write key=value",
            source="command line",
        )
    return (names[0] if names else None), [word for word in words if is_override(word)]


def load(words: Sequence[str]) -> LoadedConfig:
    """Load what `[CONFIG] [key=value ...]` says."""
    from nanofw.configs.load import DEFAULT_PRESET, load_config

    name, overrides = split_config(words)
    return load_config(name or DEFAULT_PRESET, overrides)


def console() -> Console:
    """Standard output for tables: as wide as it needs to be when it is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    return Console(width=width, highlight=False, markup=False, soft_wrap=False)


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without the columns in which no row says anything."""
    from rich import box
    from rich.table import Table

    lines = [tuple(row) for row in rows]
    shown = [place for place in range(len(columns)) if any(line[place] for line in lines)]
    made = Table(*(columns[place] for place in shown), title=title, title_justify="left",
                 box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    for line in lines:
        made.add_row(*(line[place] for place in shown))
    return made


def print_json(value: Any) -> None:
    """Write plain values as JSON to standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def readable_bytes(count: int) -> str:
    """`1536` as `1.5 KiB`: three digits, in the unit that suits the size."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
