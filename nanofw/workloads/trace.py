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
from typing import Annotated, TextIO, TypeAlias, cast

from pydantic import Field, PositiveInt, ValidationError

from nanofw.errors import ConfigError
from nanofw.plugins import Options
from nanofw.workloads.lengths import Tokens

MAX_LINE = 1 << 24
"""The longest line, in characters."""
MAX_ROWS = 2_000_000
"""Each takes some 600 bytes, and its hashes more."""
MAX_CHARACTERS = 1 << 28
"""Of all lines together; a stream may have no end."""
MAX_DIGITS = 18
"""Of a whole number."""
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class TraceRow(Options):
    """One request of a trace."""

    arrival: Seconds = 0.0
    """Seconds after the start of the trace."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    prefix_hashes: tuple[int, ...] = ()
    """Identity of each block of the prompt, from its start; requests that agree on the first k
    share them. What the hashes leave uncovered is the request's own."""
    client: str = ""
    priority: int = 0
    deadline: Seconds | None = None
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
            lines = _lines(file, path)
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


def _lines(file: TextIO, path: Path) -> Lines:
    """Lines with something in them. Raises ConfigError where there is too much to keep."""
    num = num_characters = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), ""), 1):
        if len(line) > MAX_LINE:
            raise _error(f"the line is longer than {MAX_LINE:,} characters", path, number)
        num_characters += len(line)
        if num_characters > MAX_CHARACTERS:
            raise _error(f"the trace is longer than {MAX_CHARACTERS:,} characters", path, number)
        if line.strip():
            num += 1
            if num > MAX_ROWS:
                raise _error(f"the trace has more than {MAX_ROWS:,} lines", path, number)
            yield number, line


def hashes_problem(
    row: TraceRow, block: int, name: str = "prefix_hashes", hint: str = ""
) -> str | None:
    """What is wrong when a request has more hashes than its prompt has blocks."""
    num_blocks = -(-row.prompt_tokens // block)
    if len(row.prefix_hashes) <= num_blocks:
        return None
    blocks = "1 block" if num_blocks == 1 else f"{num_blocks} blocks"
    return (
        f"{len(row.prefix_hashes)} {name} for a prompt of {row.prompt_tokens} tokens, which has "
        f"{blocks} of {block} tokens{hint}"
    )


def _recognize(line: str, path: Path) -> str:
    if "chat_id" in line and ("hash_ids" in line or "input_length" in line):
        return "bailian"
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
    block, is_first = 512, True
    for number, line in lines:
        record = _json(line, path, number)
        if "trace" in record:
            if not is_first:
                raise _error("the line that describes the trace must be its first", path, number)
            if record["trace"] != 1:
                raise _error(f"trace version {record['trace']!r} is not 1", path, number)
            block = record.get("prefix_block_tokens", block)
            if type(block) is not int or not 1 <= block <= 1 << 30:
                what = f"prefix_block_tokens is {block!r}; it must be an integer, at least 1"
                raise _error(what, path, number)
        else:
            rows.append(_row(record, path, number))
            if problem := hashes_problem(rows[-1], block):
                raise _error(problem, path, number)
        is_first = False
    return Trace(tuple(rows), block)


def _mooncake(lines: Lines, path: Path) -> Trace:
    """Timestamp (ms), input_length, output_length, hash_ids of 512-token blocks."""
    hint = "; in Bailian's traces a hash stands for 16 tokens: format: bailian"
    return _hashed(lines, path, 512, "milliseconds", hint)


def _bailian(lines: Lines, path: Path) -> Trace:
    """Timestamp (s), input_length, output_length, hash_ids of 16-token blocks, chat_id."""
    hint = "; in Mooncake's traces a hash stands for 512 tokens: format: mooncake"
    return _hashed(lines, path, 16, "seconds", hint)


def _hashed(lines: Lines, path: Path, block: int, unit: str, hint: str) -> Trace:
    """The fields that Mooncake's and Bailian's traces share; they differ in their units."""
    rows, skipped = list[TraceRow](), 0
    for number, line in lines:
        record = _json(line, path, number)
        for key in ("timestamp", "input_length", "output_length"):
            if key not in record:
                raise _error(f"{key} is missing", path, number)
        at, output = record["timestamp"], record["output_length"]
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= 1e15:
            raise _error(f"timestamp is {at!r}; it must be a number of {unit}", path, number)
        if output == 0 and type(output) is int:
            skipped += 1
            continue
        values: dict[str, object] = {
            "arrival": at / 1000 if unit == "milliseconds" else float(at),
            "prompt_tokens": record["input_length"],
            "output_tokens": output,
            "prefix_hashes": record.get("hash_ids", ()),
        }
        row = _row(values, path, number, _THEIR_NAMES)
        if problem := hashes_problem(row, block, "hash_ids", hint):
            raise _error(problem, path, number)
        rows.append(row)
    return Trace(tuple(rows), block, skipped)


_THEIR_NAMES = MappingProxyType(
    {
        "arrival": "timestamp",
        "prompt_tokens": "input_length",
        "output_tokens": "output_length",
        "prefix_hashes": "hash_ids",
    }
)


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
            if None in record:
                raise ValueError("the row has more fields than the first line names")
            lengths = _count(record[prompt]), _count(record[output])
            found.append((number, seconds(record[time]), *lengths))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _error(f"needs {time}, {prompt}, {output}: {error}", path, number) from None
    origin = min((at for _, at, _, _ in found), default=0.0)
    rows = tuple(
        _row(
            {"arrival": at - origin, "prompt_tokens": asked, "output_tokens": made},
            path,
            number,
            {"arrival": time, "prompt_tokens": prompt, "output_tokens": output},
        )
        for number, at, asked, made in found
        if made
    )
    return Trace(rows, skipped=len(found) - len(rows))


def _records(lines: Lines, path: Path) -> Iterator[tuple[int, dict[str | None, str]]]:
    """The rows of a table, each with the number of its last line; None: what has no name."""
    numbers: list[int] = [1]
    try:
        for record in csv.DictReader(_texts(lines, numbers)):
            yield numbers[-1], cast("dict[str | None, str]", record)
    except csv.Error as error:
        raise _error(f"not CSV: {error}", path, numbers[-1]) from None


def _texts(lines: Lines, numbers: list[int]) -> Iterable[str]:
    for number, line in lines:
        numbers.append(number)
        yield line


def _count(text: str) -> int:
    """A whole number as a table has it: digits, and nothing that only Python reads."""
    if not re.fullmatch(rf" *[0-9]{{1,{MAX_DIGITS}}} *", text, re.ASCII):
        raise ValueError(f"{text[:40]!r} is not a number of tokens")
    return int(text)


def _seconds(text: str) -> float:
    if "_" in text or not text.isascii():  # what only Python reads
        raise ValueError(f"{text[:40]!r} is not a time")
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(f"{text} is not a time")
    return seconds


def _wall_clock(text: str) -> float:
    """`2023-11-16 18:17:03.9799600`: of seven digits microseconds are kept; UTC if none is said."""
    moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _json(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        record = json.loads(line, object_pairs_hook=_once, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise _error(f"not JSON: {error.msg}", path, number) from None
    except RecursionError:
        raise _error("the line is nested too deeply", path, number) from None
    except ValueError as error:
        raise _error(str(error), path, number) from None
    if not isinstance(record, dict):
        raise _error("not a JSON object", path, number)
    return cast("dict[str, object]", record)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object in which no key occurs twice: which of two values counts would be a guess."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} occurs twice")
    return record


def _whole(text: str) -> int:
    if len(text) > 2 * MAX_DIGITS + 4:
        raise ValueError(f"a number of {len(text):,} digits is too long")
    return int(text)


def _row(
    values: Mapping[str, object], path: Path, number: int, names: Mapping[str, str] | None = None
) -> TraceRow:
    """A validated row. `names`: what the file calls our keys, for messages."""
    try:
        hashes = values.get("prefix_hashes", ())
        if isinstance(hashes, list):
            values = {**values, "prefix_hashes": tuple(cast("list[object]", hashes))}
        return TraceRow.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, ((names or {}).get(str(first["loc"][0]), first["loc"][0]),
                                 *first["loc"][1:])))  # fmt: skip
        raise _error(f"{key}: {first['msg']}", path, number) from None


def _error(message: str, path: Path, number: int) -> ConfigError:
    return ConfigError(message, source=str(path), line=number)


FORMATS: Mapping[str, Callable[[Lines, Path], Trace]] = MappingProxyType(
    {
        "nanofw": _nanofw,
        "azure": _azure,
        "mooncake": _mooncake,
        "bailian": _bailian,
        "burstgpt": _burstgpt,
    }
)
"""Readers by the name of the format."""
