"""The trace format of nanofw, and readers of traces that others publish.

A trace is JSONL. Its first line may describe it:

    {"trace": 1, "prefix_block_tokens": 512, "source": "...", "licence": "..."}

and each other line is one request (see `TraceRow`), by rising arrival:

    {"arrival": 0.3, "prompt_tokens": 600, "output_tokens": 80, "prefix_hashes": [7, 12]}
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, cast

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError

from nanofw.errors import ConfigError
from nanofw.plugins import Options
from nanofw.workloads.lengths import Tokens


class TraceRow(Options):
    """One request of a trace."""

    arrival: NonNegativeFloat = 0.0
    """Seconds after the start of the trace."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    prefix_hashes: tuple[int, ...] = ()
    """Identity of each block of the prompt, from its start; requests that agree on the first k
    share them. What the hashes leave uncovered is the request's own."""
    client: str = ""
    priority: int = 0
    deadline: NonNegativeFloat | None = None
    """Seconds after the start of the trace."""
    expected_output_tokens: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows by rising arrival; `skipped` counts requests of the source without any output."""

    rows: tuple[TraceRow, ...]
    prefix_block_tokens: int = 512
    skipped: int = 0


Lines: TypeAlias = Iterator[tuple[int, str]]
"""Line numbers from 1, and text."""


def read_trace(path: Path, format: str = "auto") -> Trace:
    """Read a trace; `format` is a key of `FORMATS`, or auto: recognized by its first line.

    Raises:
        ConfigError: with file and line, when it cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            first = next(lines, None)
            if first is None:
                raise ConfigError("the trace is empty", source=str(path))
            if format == "auto":
                format = _recognize(first[1], path)
            trace = FORMATS[format](chain([first], lines), path)
    except OSError as error:
        raise ConfigError(f"cannot read the trace: {error.strerror}", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the trace is not UTF-8: {error.reason}", source=str(path)) from None
    if not trace.rows:
        raise ConfigError("the trace has no request with an output", source=str(path))
    return Trace(
        tuple(sorted(trace.rows, key=lambda row: row.arrival)),
        trace.prefix_block_tokens,
        trace.skipped,
    )


def _recognize(line: str, path: Path) -> str:
    if "ContextTokens" in line:
        return "azure"
    if "Request tokens" in line:
        return "burstgpt"
    if "hash_ids" in line or "input_length" in line:
        return "mooncake"
    if "prompt_tokens" in line or '"trace"' in line:
        return "nanofw"
    raise ConfigError(
        f"no known trace format; known: {', '.join(FORMATS)}", source=str(path), line=1
    )


def _nanofw(lines: Lines, path: Path) -> Trace:
    rows: list[TraceRow] = []
    block = 512
    for number, line in lines:
        record = _json(line, path, number)
        if "trace" in record:
            if record["trace"] != 1:
                raise _error(f"trace version {record['trace']!r} is not 1", path, number)
            block = record.get("prefix_block_tokens", block)
            if type(block) is not int or block < 1:
                what = f"prefix_block_tokens is {block!r}; it must be an integer, at least 1"
                raise _error(what, path, number)
        else:
            rows.append(_row(record, path, number))
    return Trace(tuple(rows), block)


def _mooncake(lines: Lines, path: Path) -> Trace:
    """Timestamp (ms), input_length, output_length, hash_ids of 512-token blocks."""
    rows, skipped = list[TraceRow](), 0
    for number, line in lines:
        record = _json(line, path, number)
        for key in ("timestamp", "input_length", "output_length"):
            if key not in record:
                raise _error(f"{key} is missing", path, number)
        if not record["output_length"]:
            skipped += 1
            continue
        if type(record["timestamp"]) not in (int, float):
            what = f"timestamp is {record['timestamp']!r}; it must be a number of milliseconds"
            raise _error(what, path, number)
        values = {
            "arrival": record["timestamp"] / 1000,
            "prompt_tokens": record["input_length"],
            "output_tokens": record["output_length"],
            "prefix_hashes": record.get("hash_ids", ()),
        }
        rows.append(_row(values, path, number))
    return Trace(tuple(rows), 512, skipped)


def _azure(lines: Lines, path: Path) -> Trace:
    """TIMESTAMP, ContextTokens, GeneratedTokens."""
    return _csv(lines, path, "TIMESTAMP", "ContextTokens", "GeneratedTokens", _wall_clock)


def _burstgpt(lines: Lines, path: Path) -> Trace:
    """Timestamp (s), Request tokens, Response tokens; failed requests have no response."""
    return _csv(lines, path, "Timestamp", "Request tokens", "Response tokens", _seconds)


def _csv(
    lines: Lines, path: Path, time: str, prompt: str, output: str, seconds: Callable[[str], float]
) -> Trace:
    found: list[tuple[int, float, int, int]] = []
    for number, record in _records(lines, path):
        try:
            found.append((number, seconds(record[time]), int(record[prompt]), int(record[output])))
        except (KeyError, TypeError, ValueError) as error:
            raise _error(f"needs {time}, {prompt}, {output}: {error}", path, number) from None
    origin = min((at for _, at, _, _ in found), default=0.0)
    rows = tuple(
        _row({"arrival": at - origin, "prompt_tokens": asked, "output_tokens": made}, path, number)
        for number, at, asked, made in found
        if made
    )
    return Trace(rows, skipped=len(found) - len(rows))


def _records(lines: Lines, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table, each with the number of its last line."""
    numbers: list[int] = [1]
    try:
        for record in csv.DictReader(_texts(lines, numbers)):
            yield numbers[-1], record
    except csv.Error as error:
        raise _error(f"not CSV: {error}", path, numbers[-1]) from None


def _texts(lines: Lines, numbers: list[int]) -> Iterable[str]:
    for number, line in lines:
        numbers.append(number)
        yield line


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(f"{text} is not a time")
    return seconds


def _wall_clock(text: str) -> float:
    """`2023-11-16 18:17:03.9799600`: of seven digits microseconds are kept; UTC if none is said."""
    moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _json(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise _error(f"not JSON: {error.msg}", path, number) from None
    if not isinstance(record, dict):
        raise _error("not a JSON object", path, number)
    return record  # pyright: ignore[reportUnknownVariableType]


def _row(values: Mapping[str, Any], path: Path, number: int) -> TraceRow:
    try:
        hashes = values.get("prefix_hashes", ())
        if isinstance(hashes, list):
            values = {**values, "prefix_hashes": tuple(cast("list[Any]", hashes))}
        return TraceRow.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise _error(f"{key}: {first['msg']}", path, number) from None


def _error(message: str, path: Path, number: int) -> ConfigError:
    return ConfigError(message, source=str(path), line=number)


FORMATS: Mapping[str, Callable[[Lines, Path], Trace]] = MappingProxyType(
    {"nanofw": _nanofw, "azure": _azure, "mooncake": _mooncake, "burstgpt": _burstgpt}
)
"""Readers by the name of the format."""
