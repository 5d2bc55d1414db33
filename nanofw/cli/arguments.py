"""What commands share: a configuration and `key=value` pairs, tables."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nanofw.config.load import LoadedConfig
    from nanofw.config.schema import Section
    from nanofw.measure.progress import ProgressReport

M = TypeVar("M", bound="Section")
WIDTH_OF_A_FILE = 200
"""Characters of a line of a table that no terminal shows."""
CONFIG_WORDS = "[CONFIG] [KEY=VALUE ...]"
CONFIG_HELP = "a YAML file or a preset's name (default: the preset qwen3-demo), then KEY=VALUE"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Let a parser take `[CONFIG] [key=value ...]`. Parse with `parse_intermixed_args`."""
    parser.usage = f"{parser.prog} {CONFIG_WORDS} [OPTIONS]"
    # with a default, or argparse counts it among the arguments that are required
    parser.add_argument("config", nargs="*", default=[], metavar=CONFIG_WORDS, help=CONFIG_HELP)


def split_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration's name, or None, and the `key=value` pairs."""
    from nanofw.config.layers import is_override, looks_like_file
    from nanofw.errors import ConfigError

    names = [word for word in words if not is_override(word)]
    for name in names:
        if "=" in name and not looks_like_file(name):
            raise ConfigError(
                f"{name!r} is not of the form key=value, with a key such as engine.seed; a list "
                f"is replaced as a whole",
                source="command line",
            )
        if name.startswith("-"):
            raise ConfigError(
                f"no option {name}; settings are written key=value, engine.max_num_seqs=8 say",
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
    from nanofw.config.load import DEFAULT_PRESET, load_config

    name, overrides = split_config(words)
    return load_config(name or DEFAULT_PRESET, overrides)


def own_options(words: Sequence[str], prefix: str, model: type[M]) -> tuple[M, list[str]]:
    """A command's own settings, `prefix.key=value` among its words, and the other words.

    Raises:
        ConfigError: with the key of what is wrong.
    """
    from nanofw.config.layers import override_layer
    from nanofw.config.validation import Values, validate

    start = f"{prefix}."
    own = [word for word in words if word.startswith(start)]
    layer = override_layer(own)
    data: dict[str, Any] = layer.data.get(prefix, {})
    values = Values(layer.data, layer.sources, layer.texts, {})
    made = validate(model, data, values, (prefix,))
    return made, [word for word in words if word not in own]


def check_writable(path: Path, key: str, read: Iterable[str | Path] = ()) -> None:
    """Find out before hours of runs, not after, that their result cannot be written.

    Args:
        key: what named the path, for the message.
        read: files that the command reads, none of which may be overwritten.

    Raises:
        ConfigError: it cannot, or would overwrite one of them.
    """
    from nanofw.errors import ConfigError

    for name in read:
        if is_same_file(path, Path(name)):
            raise ConfigError(f"would overwrite {name}; name another file", key=key)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", key=key) from None
    if is_new:  # a command that fails later leaves no empty file
        path.unlink()


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Name the file in an error of a write to it: Python names it only when it is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def files_read(loaded: LoadedConfig, words: Sequence[str] = ()) -> set[str]:
    """Files that a configuration came from, with those that the command line names."""
    from nanofw.config.layers import looks_like_file

    names = {source.name for source in loaded.values.sources.values()} | {*words}
    return {name for name in names if looks_like_file(name)}


def is_same_file(left: Path, right: Path) -> bool:
    """Whether two paths lead to one regular file, or will when it is made."""
    try:
        if left.exists() and not left.is_file():
            return False  # a device, a pipe
        return left.resolve() == right.resolve() or left.samefile(right)
    except OSError:
        return False


@contextmanager
def progress(
    refresh_per_second: float = 10, seconds_between_lines: float = 30
) -> Generator[ProgressReport]:
    """A bar on standard error, where somebody watches; elsewhere a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    errors = Console(file=sys.stderr)
    if not errors.is_terminal:
        yield _lines(seconds_between_lines)
        return
    with Progress(*columns, console=errors, refresh_per_second=refresh_per_second) as shown:
        bar = shown.add_task("", total=None)

        def report(done: int, total: int, what: str) -> None:
            shown.update(bar, completed=done, total=total, description=what)

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


def console() -> Console:
    """Standard output for tables: as wide as it needs to be when it is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    return Console(width=width, highlight=False, markup=False, soft_wrap=False)


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
