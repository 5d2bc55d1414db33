"""Where a value of the configuration came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from nanofw.narrowing import is_dict, is_list

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A place in a file, a preset, the command line, Python, or the defaults.

    Attributes:
        name: file or preset, `command line`, `python`, `default`.
        line: one-based, where there are lines.
        folder: what relative paths are relative to; None: the current folder.
    """

    name: str
    line: int | None = None
    folder: Path | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}"


DEFAULT = ValueSource("default")


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """One file, or one of the other sources of values.

    Attributes:
        name: as in its sources.
        data: nested plain values; interpolations unresolved.
        sources: of every key in `data`.
        texts: of scalars from the command line, as they were typed.
    """

    name: str
    data: dict[str, object]
    sources: Mapping[KeyPath, ValueSource]
    texts: Mapping[KeyPath, str] = field(default_factory=dict[KeyPath, str])


def dotted(path: KeyPath) -> str:
    """`("a", "b", 0)` as `a.b[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest_source(sources: Mapping[KeyPath, ValueSource], path: KeyPath) -> ValueSource:
    """The source of a key, or of the closest key above it."""
    for length in range(len(path), 0, -1):
        if path[:length] in sources:
            return sources[path[:length]]
    return DEFAULT


def expanded(text: str | Path) -> Path:
    """A path with `~` replaced. Raises ValueError when it cannot be one, or there is no home."""
    if "\0" in str(text):
        raise ValueError("a path cannot contain the character U+0000")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"the home folder of {Path(text).parts[0]} is not known") from None


def real(path: Path) -> Path:
    """A path without symbolic links. Raises ValueError when they lead in a circle."""
    try:
        return path.resolve()
    except (RuntimeError, OSError):
        raise ValueError(f"symbolic links lead in a circle: {path}") from None


def paths_below(value: object, path: KeyPath) -> list[KeyPath]:
    """A key, and every key below its value."""
    return [path, *(below for below, _ in walk(value, path))]


def walk(value: object, path: KeyPath = ()) -> list[tuple[KeyPath, object]]:
    """Every key below `value` with its value, containers before their content."""
    found: list[tuple[KeyPath, object]] = []
    items: Iterable[tuple[str | int, object]] = ()
    if is_dict(value):
        items = value.items()
    elif is_list(value) and isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        found.append(((*path, key), item))
        found += walk(item, (*path, key))
    return found
