"""Runs that were finished, kept in a file until the whole experiment is: `compare.resume=true`.

The file stands beside `output`, a line of JSON for each run. An experiment that was ended, however
that happened, goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import msgspec
from pydantic import BaseModel

import nanofw
from nanofw.assembly import Selection
from nanofw.assembly.provenance import commit
from nanofw.compare.capacity import LoadCapacity
from nanofw.compare.experiment import Experiment
from nanofw.compare.run import RunResult
from nanofw.compare.task import Task
from nanofw.config.load import plain
from nanofw.errors import ConfigError
from nanofw.narrowing import is_dict, is_list
from nanofw.plugins import Component

SUFFIX = ".runs"
_UNIMPORTANT = {
    "name", "expect", "output", "report", "resume", "processes", "decisions",
    "records", "records_format",
}  # fmt: skip
"""Keys of an experiment that change no run."""


class KeptRuns:
    """The file of one experiment; without `output` nothing is kept.

    Attributes:
        capacity: what was found of the baseline before; None: nothing.
        runs: by task, those of the experiment that is resumed.
    """

    def __init__(self, experiment: Experiment, selections: Mapping[str, Selection]) -> None:
        self.capacity: LoadCapacity | None = None
        self.runs: dict[Task, RunResult] = {}
        self._file: IO[str] | None = None
        output: Path | None = experiment.options.output
        if output is None:
            if experiment.options.resume:
                raise ConfigError(
                    "needs output: finished runs are kept beside that file", key="resume"
                )
            return
        self._path = output.with_name(output.name + SUFFIX)
        self._mark = _fingerprint(experiment, selections)
        if experiment.options.resume and self._path.exists():
            self._read()
            self._file = self._path.open("a", encoding="utf-8")
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8")
        self._write({"experiment": self._mark})

    def note_capacity(self, capacity: LoadCapacity) -> None:
        """Keep what was found of the baseline."""
        if self.capacity is None:
            self._write({"capacity": asdict(capacity)})

    def add(self, task: Task, result: RunResult) -> None:
        """Keep a run."""
        self._write({"task": asdict(task), "result": asdict(result)})

    def close(self) -> None:
        """Close the file and leave it there. Idempotent."""
        if self._file is not None:
            self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _read(self) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        for number, line in enumerate(whole, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"is not a file of finished runs: {error}", source=str(self._path), line=number
                ) from None
        if len(whole) < len(lines):  # a run that was being written
            self._path.write_text("".join(whole), encoding="utf-8")

    def _take(self, line: dict[str, Any]) -> None:
        if "experiment" in line:
            if line["experiment"] != self._mark:
                raise ConfigError(
                    "holds runs of another experiment, configuration or version; remove it, or "
                    "leave compare.resume out",
                    source=str(self._path),
                )
        elif "capacity" in line:
            self.capacity = LoadCapacity(**line["capacity"])
        else:
            self.runs[Task(**line["task"])] = msgspec.convert(line["result"], RunResult)


def remove_kept(experiment: Experiment) -> None:
    """The experiment is done and its result is written: nothing is left to resume."""
    output: Path | None = experiment.options.output
    if output is not None:
        output.with_name(output.name + SUFFIX).unlink(missing_ok=True)


def _fingerprint(experiment: Experiment, selections: Mapping[str, Selection]) -> str:
    """Of all that a run depends on."""
    options = plain(experiment.options)
    content = {
        "options": {key: value for key, value in options.items() if key not in _UNIMPORTANT},
        "arms": {arm: plain(found.loaded.config) for arm, found in selections.items()},
        "plugins": {arm: _versions(found) for arm, found in selections.items()},
        "nanofw": [nanofw.__version__, commit()],
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _versions(selection: Selection) -> list[list[str]]:
    """The version of each chosen plugin, and a hash of each file that its options name."""
    found: list[list[str]] = []
    for component in _chosen(selection):
        if component.entry is not None:
            found.append([component.kind, component.name, component.entry.version])
        options: object = component.options
        values: object = options.model_dump() if isinstance(options, BaseModel) else None
        found += [[str(path), _digest(path)] for path in _paths(values) if path.is_file()]
    return found


def _chosen(selection: Selection) -> Iterator[Component]:
    for chosen in selection.components.values():
        if isinstance(chosen, Component):
            yield chosen
        elif is_list(chosen):
            yield from (item for item in chosen if isinstance(item, Component))


def _paths(value: object) -> Iterator[Path]:
    """All paths in plain data."""
    if isinstance(value, Path):
        yield value
    elif is_dict(value):
        for item in value.values():
            yield from _paths(item)
    elif is_list(value):
        for item in value:
            yield from _paths(item)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
