"""Random rows of every trace format: read right, or refused with their row.

`python -m tests.fuzz.traces FIRST COUNT`: the seeds from `FIRST` on.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanofw.errors import ConfigError
from nanofw.workloads.trace import read_trace

ODD: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: None, lambda rng: True, lambda rng: -1, lambda rng: 0, lambda rng: "5",
    lambda rng: "", lambda rng: [], lambda rng: {}, lambda rng: math.nan, lambda rng: math.inf,
    lambda rng: -math.inf, lambda rng: 10**rng.choice([8, 12, 17, 30, 400, 4000]),
    lambda rng: rng.choice([1e300, -1e-300, 0.5, 1e15]), lambda rng: [rng.random()],
    lambda rng: "\u0661", lambda rng: "1_0", lambda rng: " 7 ", lambda rng: "nan",
    lambda rng: [1] * 100, lambda rng: [True], lambda rng: [-5], lambda rng: [10**40],
)  # fmt: skip
"""Values that a file may have where another is due."""


def is_whole(value: Any, low: int, high: int = 1 << 30) -> bool:
    return type(value) is int and low <= value <= high


def is_time(value: Any, high: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= high


def hashes_fit(value: Any, prompt: int, block: int) -> bool:
    return (
        isinstance(value, list)
        and all(type(item) is int for item in value)
        and all(len(str(abs(item))) < 38 for item in value)
        and len(value) <= -(-prompt // block)
    )


def is_readable(record: dict[str, Any]) -> bool:
    """Whether no number is longer than any reader should take, also under keys of no use."""
    items = [i for v in record.values() for i in (v if isinstance(v, list) else [v])]
    return all(abs(item) < 10**38 for item in items if type(item) is int)


class Nanofw:
    name, block = "nanofw", 8
    head = '{"trace": 1, "prefix_block_tokens": 8}'

    def make(self, rng: random.Random, number: int) -> dict[str, Any]:
        prompt = rng.randint(1, 100)
        record = {"arrival": rng.random() * 9, "prompt_tokens": prompt, "output_tokens": 3}
        if rng.random() < 0.5:
            record["prefix_hashes"] = [rng.randint(-9, 9) for _ in range(-(-prompt // 8))]
        return record

    def expected(self, record: dict[str, Any]) -> Any:
        """Arrival, prompt, output and hashes; None: left out; False: refused."""
        known = {"arrival", "prompt_tokens", "output_tokens", "prefix_hashes"}
        prompt: Any = record.get("prompt_tokens")
        output = record.get("output_tokens")
        at, hashes = record.get("arrival", 0.0), record.get("prefix_hashes", [])
        fits = is_whole(prompt, 1) and is_whole(output, 1) and is_time(at, 1e12)
        if not fits or set(record) - known or not hashes_fit(hashes, prompt, self.block):
            return False
        return at, prompt, output, tuple(hashes)


class Mooncake:
    name, head, block, unit = "mooncake", None, 512, 1000

    def make(self, rng: random.Random, number: int) -> dict[str, Any]:
        prompt = rng.randint(1, 5 * self.block)
        return {
            "timestamp": rng.randint(0, 9000), "input_length": prompt,
            "output_length": rng.choice([0, 1, 7]),
            "hash_ids": list(range(-(-prompt // self.block))),
        }  # fmt: skip

    def expected(self, record: dict[str, Any]) -> Any:
        if not {"timestamp", "input_length", "output_length"} <= set(record):
            return False
        at, prompt, output = (record[k] for k in ("timestamp", "input_length", "output_length"))
        if not is_time(at, 1e15) or not is_time(at / self.unit, 1e12 if output else 1e15):
            return False
        if type(output) is int and output == 0:
            return None
        hashes = record.get("hash_ids", [])
        if not (is_whole(prompt, 1) and is_whole(output, 1)):
            return False
        return hashes_fit(hashes, prompt, self.block) and (
            at / self.unit, prompt, output, tuple(hashes),
        )  # fmt: skip


class Bailian(Mooncake):
    name, block, unit = "bailian", 16, 1

    def make(self, rng: random.Random, number: int) -> dict[str, Any]:
        return {"chat_id": number, **super().make(rng, number), "turn": 1}


class Azure:
    name, columns = "azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    start = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)

    def time(self, seconds: int) -> str:
        moment = self.start + timedelta(seconds=seconds)
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + "1234567"

    def seconds(self, text: str) -> float | None:
        found = re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{7}", text, re.ASCII)
        if found is None:
            return None
        moment = datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp()


class Burstgpt(Azure):
    name, columns = "burstgpt", ("Timestamp", "Request tokens", "Response tokens")

    def time(self, seconds: int) -> str:
        return str(seconds)

    def seconds(self, text: str) -> float | None:
        number = re.fullmatch(r" *-?\d+(\.\d+)?(e[+-]?\d+)? *", text, re.ASCII)
        return float(text) if number and math.isfinite(float(text)) else None


def try_json(folder: Path, kind: type[Any], seed: int) -> None:
    """A file of lines of JSON, as `kind` has them."""
    form, rng = kind(), random.Random(f"{kind.name} {seed}")
    records = [form.make(rng, number) for number in range(rng.randint(1, 6))]
    if rng.random() < 0.66:
        _spoil(rng, rng.choice(records))
    lines = ([form.head] if form.head else []) + [json.dumps(item) for item in records]
    path = folder / "t.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    first = len(lines) - len(records) + 1
    check(path, form.name, [is_readable(i) and form.expected(i) for i in records], first)


def try_table(folder: Path, kind: type[Any], seed: int) -> None:
    """A table, as `kind` has it."""
    form, rng = kind(), random.Random(f"{kind.name} {seed}")
    rows = [
        [form.time(rng.randint(0, 999)), str(rng.randint(1, 999)), str(rng.choice([0, 1, 7]))]
        for _ in range(rng.randint(1, 6))
    ]
    if rng.random() < 0.66:
        row = rng.choice(rows)
        if rng.random() < 0.2:
            row.append("9") if rng.random() < 0.5 else row.pop()
        else:
            row[rng.randrange(3)] = _odd_text(rng)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([form.columns, *rows])
    path = folder / "t.csv"
    path.write_text(out.getvalue(), encoding="utf-8")
    check(path, form.name, _expected_of_table(form, rows), 2)


KINDS: tuple[tuple[Callable[[Path, type[Any], int], None], type[Any]], ...] = (
    (try_json, Nanofw),
    (try_json, Mooncake),
    (try_json, Bailian),
    (try_table, Azure),
    (try_table, Burstgpt),
)
"""How a format is tried, and the format."""


def try_case(folder: Path, seed: int) -> None:
    """One file of a format, each format in its turn; raises where it is read wrongly."""
    attempt, kind = KINDS[seed % len(KINDS)]
    attempt(folder, kind, seed)


def check(path: Path, name: str, expected: list[Any], first: int) -> None:
    """The file is read as expected, by name and when it is recognized; or its row is named."""
    refused = [number for number, item in enumerate(expected, first) if item is False]
    wanted = sorted((item for item in expected if item), key=lambda item: item[0])
    for given in (name, "auto"):
        if refused or not wanted:
            line = refused_at(path, given)
            assert line in refused or (line == 1 and given == "auto") or not (refused or line)
            continue
        trace = read_trace(path, given)
        rows = [(r.arrival, r.prompt_tokens, r.output_tokens, r.prefix_hashes) for r in trace.rows]
        assert [row[1:] for row in rows] == [item[1:] for item in wanted]
        assert [row[0] for row in rows] == pytest.approx([item[0] for item in wanted], abs=1e-5)
        assert trace.skipped == expected.count(None)


def refused_at(path: Path, given: str) -> int | None:
    """The line at which a trace is refused, which it must be."""
    try:
        read_trace(path, given)
    except ConfigError as error:
        return error.line
    raise AssertionError(f"{path.read_text('utf-8')[:500]} was read")


def _spoil(rng: random.Random, record: dict[str, Any]) -> None:
    lists = [key for key in record if isinstance(record[key], list)]
    if lists and rng.random() < 0.2:
        record[lists[0]] = record[lists[0]] + [1] * rng.choice((1, 2, 100))
        return
    key = rng.choice(list(record))
    if rng.random() < 0.2 and key != "chat_id":  # the format is known by it
        del record[key]
        return
    record[key] = rng.choice(ODD)(rng)


def _odd_text(rng: random.Random) -> str:
    value = rng.choice(ODD)(rng)
    is_long = isinstance(value, int) and abs(value) > 10**18
    return "9" * 5000 if is_long else str(value)


def _expected_of_table(form: Any, rows: list[list[str]]) -> list[Any]:
    found: list[Any] = []
    for row in rows:
        lengths = [re.fullmatch(r" *(\d{1,18}) *", text, re.ASCII) for text in row[1:]]
        at = form.seconds(row[0]) if row else None
        if len(row) != 3 or at is None or None in lengths:
            found.append(False)
            continue
        prompt, output = (int(match[1]) for match in lengths if match)
        if output == 0:
            found.append((at, None))
        else:
            fits = 1 <= prompt <= 1 << 30 and output <= 1 << 30
            found.append(fits and (at, prompt, output, ()))
    start = min((item[0] for item in found if item), default=0.0)
    return [item and _after(start, *item) for item in found]


def _after(start: float, at: float, *lengths: Any) -> Any:
    if lengths[0] is None:
        return None
    return at - start <= 1e12 and (at - start, *lengths)


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            try:
                try_case(Path(folder), seed)
            except Exception as error:
                raise AssertionError(f"{KINDS[seed % len(KINDS)][1].name}, seed {seed}") from error
    print(f"{count} traces, each read right or refused with its row")


if __name__ == "__main__":
    main()
