"""Reading the files of a checkpoint folder within bounds.

A folder may come from anywhere. What is read from it is bounded in bytes, in depth and in digits,
only regular files are opened, and a name that one file gives to another stays in the folder.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path, PurePosixPath
from typing import cast

from nanofw.checkpoints.formats import describe
from nanofw.errors import ModelError

MAX_JSON_BYTES = 16 << 20
MAX_DEPTH = 32
MAX_DIGITS = 32
_SHOWN = 80


class _LongInteger:
    """An integer of more digits than any key needs; the key's name is known one level up."""


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
        ModelError: the file is not there, cannot be read, or breaks a bound.
    """
    value = _json_of(path, max_bytes)
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    parsed = cast("dict[str, object]", value)
    _check_bounds(parsed, path)
    return parsed


def read_json_list(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> list[object]:
    """The JSON list in a file. Raises as `read_json`."""
    value = _json_of(path, max_bytes)
    if not isinstance(value, list):
        raise ModelError(f"{path} does not hold a JSON list")
    parsed = cast("list[object]", value)
    _check_bounds({"the list": parsed}, path)
    return parsed


def _json_of(path: Path, max_bytes: int) -> object:
    try:
        return json.loads(read_text(path, max_bytes), parse_int=_integer)
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent} is not a checkpoint: it has no {path.name}{describe(path.parent)}"
        ) from None
    except RecursionError:
        raise ModelError(f"{path} is nested deeper than {MAX_DEPTH} levels") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def is_inside(name: object) -> bool:
    """Whether a name that a file gives to another is that of a file in the same folder or below."""
    if not isinstance(name, str) or not name or "\\" in name or not name.isprintable():
        return False
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and ".." not in parts and ":" not in parts[0]


def is_regular(path: Path) -> bool:
    """Whether there is a file that reading comes to the end of: no folder, pipe or device."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def shown(value: object) -> str:
    """A value of a file as it stands in messages: short, on one line."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a file. Raises OSError or ValueError: it cannot be read, or breaks a bound."""
    if path.exists() and not is_regular(path):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return data.decode("utf-8")


def _integer(text: str) -> object:
    return int(text) if len(text) <= MAX_DIGITS else _LongInteger()


def _check_bounds(value: dict[str, object], path: Path) -> None:
    """Refuse what is nested too deep, and integers that are too long, by the name of their key."""
    level: list[tuple[str, object]] = list(value.items())
    for _ in range(MAX_DEPTH):
        deeper: list[tuple[str, object]] = []
        for key, item in level:
            if isinstance(item, _LongInteger):
                raise ModelError(f"{path}: {shown(key)} has more than {MAX_DIGITS} digits")
            if isinstance(item, dict):
                pairs = cast("dict[str, object]", item).items()
                deeper += [(f"{key}.{name}", entry) for name, entry in pairs]
            elif isinstance(item, list):
                deeper += [(key, entry) for entry in cast("list[object]", item)]
        if not deeper:
            return
        level = deeper
    raise ModelError(f"{path}: {shown(level[0][0])} is nested deeper than {MAX_DEPTH} levels")
