"""A line for every request of a run, as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from nanofw.contracts.outputs import RequestOutput
from nanofw.errors import PluginLoadError

Format: TypeAlias = Literal["csv", "parquet"]
COLUMNS = (
    "id", "sample_index", "client", "arrival", "scheduled", "first_token", "finished",
    "finish_reason",
    "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "num_preemptions",
    "num_recomputed_tokens", "num_recovered_tokens",
)  # fmt: skip


class RequestRecords:
    """Lines of one run, in the order in which requests finished.

    Args:
        labels: columns before the others, the same in every line: arm, load, run, seed.
    """

    def __init__(self, labels: Mapping[str, object]) -> None:
        self._labels = dict(labels)
        self._lines: list[tuple[object, ...]] = []

    def add(self, output: RequestOutput, client: str) -> None:
        """Note a request that finished or was refused."""
        self._lines.append(
            (
                output.id, output.sample_index, client, output.arrival, output.scheduled,
                output.first_token, output.finished, output.finish_reason.value,
                output.num_prompt_tokens, output.num_cached_tokens, len(output.token_ids),
                output.num_preemptions, output.num_recomputed_tokens, output.num_recovered_tokens,
            )
        )  # fmt: skip

    def write(self, path: Path, form: Format) -> None:
        """Write all lines to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = (*self._labels, *COLUMNS)
        lines = [(*self._labels.values(), *line) for line in self._lines]
        if form == "csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(lines)
            return
        _write_parquet(path, columns, lines)


def check_format(form: Format) -> None:
    """Raise PluginLoadError, with what to install, where a format cannot be written here."""
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise PluginLoadError(
            "records_format: parquet needs pyarrow: pip install 'nanofw[parquet]'"
        )


def _write_parquet(path: Path, columns: tuple[str, ...], lines: list[tuple[object, ...]]) -> None:
    check_format("parquet")
    arrow: object = importlib.import_module("pyarrow")
    parquet: object = importlib.import_module("pyarrow.parquet")
    values = list(zip(*lines, strict=True)) if lines else [()] * len(columns)
    table = arrow.table(
        {name: _plain(column) for name, column in zip(columns, values, strict=True)}
    )
    parquet.write_table(table, str(path))


def _plain(column: tuple[object, ...]) -> list[object]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in column]
