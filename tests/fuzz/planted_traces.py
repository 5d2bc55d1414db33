"""Faults planted in the readers of traces."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nanofw.errors import ConfigError
from nanofw.workloads import trace
from tests.fuzz.planting import Planted, raising
from tests.fuzz.traces import try_case


@contextlib.contextmanager
def opened() -> Iterator[Callable[[int], object]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        raising(lambda seed: try_case(Path(folder), seed)) as problem,
    ):
        yield problem


PLANTED = Planted(opened)
plant = PLANTED.plant


@plant(trace, "hashes_problem")
def hashes_are_not_counted(usual: Any) -> Any:
    return lambda *arguments: None


@plant(trace, "_whole")
def numbers_have_no_bound(usual: Any) -> Any:
    return lambda text: int(text[:4000])


@plant(trace, "_hashed")
def milliseconds_are_seconds(usual: Any) -> Any:
    return lambda lines, path, block, unit, hint: usual(lines, path, block, "seconds", hint)


@plant(trace, "_count")
def what_python_reads_is_a_count(usual: Any) -> Any:
    return lambda text: int(text)


@plant(trace, "_seconds")
def what_python_reads_is_a_time(usual: Any) -> Any:
    return float


@plant(trace, "_wall_clock")
def times_are_whole_minutes(usual: Any) -> Any:
    return lambda text: usual(text) // 60 * 60


@plant(trace, "sorted")
def rows_stay_in_their_order(usual: Any) -> Any:
    return lambda rows, key: list(rows)


@plant(trace, "min")
def times_do_not_begin_at_zero(usual: Any) -> Any:
    return lambda times, default: 0.0


@plant(trace, "Trace")
def what_is_left_out_is_not_counted(usual: Any) -> Any:
    return lambda rows, block=512, skipped=0: usual(rows, block)


@plant(trace, "_recognize")
def formats_are_told_by_one_key(usual: Any) -> Any:
    return lambda line, path: "mooncake" if "hash_ids" in line else usual(line, path)


@plant(trace, "_error")
def lines_are_counted_from_zero(usual: Any) -> Any:
    return lambda text, path, number: ConfigError(text, source=str(path), line=number - 1)


@plant(trace, "_records")
def what_has_no_name_is_dropped(usual: Any) -> Any:
    def records(lines: Any, path: Path) -> Iterator[Any]:
        for number, record in usual(lines, path):
            yield number, {key: text for key, text in record.items() if key is not None}

    return records


@plant(trace, "_row")
def types_are_converted(usual: Any) -> Any:
    def row(values: Any, path: Path, number: int, names: Any = None) -> Any:
        try:
            return trace.TraceRow.model_validate(values)
        except ValueError:
            return usual(values, path, number, names)

    return row
