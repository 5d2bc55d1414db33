"""Files that a run writes beside its result: its decision log, and a line for every request."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nanofw.assembly import Selection
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.records import RequestRecords
from nanofw.decisions.recorder import recording
from nanofw.engine.base import BaseEngine
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError, shown

MAX_NAME = 200
"""Bytes of a file's name before the number of the run; systems take 255."""


def check_names(options: ExperimentOptions, arms: Iterable[str]) -> None:
    """Raise ConfigError if two runs would write one file, or a name is too long for a file."""
    key = "decisions" if options.decisions is not None else "records"
    if getattr(options, key) is None:
        return
    seen: dict[str, str] = {}
    for arm, point in itertools.product(arms, options.loads or options.rates or (None,)):
        stem, place = _stem(arm, point), arm if point is None else f"{arm} at {point!r}"
        if len(stem.encode()) > MAX_NAME:
            reason = (
                f"arm {shown(arm)} has a name that is too long for a file: give it a shorter one"
            )
            raise ConfigError(reason, key=key)
        other = seen.setdefault(stem.casefold(), place)
        if other != place:
            reason = (
                f"{other} and {place} would write the same files, {stem}_1…: rename one of them"
            )
            raise ConfigError(reason, key=key)


def _stem(arm: str, point: float | None) -> str:
    name = re.sub(r"[^\w.,=-]+", "-", arm)
    return name if point is None else f"{name}_{point:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Where one run writes.

    Attributes:
        options: of the experiment, which names the folders.
        point: the load or rate; None: as the workload says.
        repeat: number of the run, from 0.
    """

    options: ExperimentOptions
    arm: str
    point: float | None
    repeat: int
    seed: int

    @property
    def _name(self) -> str:
        return f"{_stem(self.arm, self.point)}_{self.repeat + 1}"

    @property
    def log(self) -> Path:
        """Where its decision log is, where the experiment wants one."""
        return (self.options.decisions or Path()) / f"{self._name}.jsonl"

    def recording(self, engine: BaseEngine, selection: Selection) -> AbstractContextManager[None]:
        """Within it decisions are noted, where the experiment wants them."""
        if self.options.decisions is None:
            return nullcontext()
        if not isinstance(engine, Engine):
            raise ConfigError(
                "must be left out with engine.replicas: a log is of one engine",
                key="compare.decisions",
            )
        return recording(
            engine, selection, self.log, arm=self.arm, point=self.point, seed=self.seed
        )

    def records(self) -> RequestRecords | None:
        """Takes a line for every request, where the experiment wants them."""
        if self.options.records is None:
            return None
        labels = {"arm": self.arm, "load": self.point, "run": self.repeat + 1, "seed": self.seed}
        return RequestRecords(labels)

    def write_records(self, records: RequestRecords) -> None:
        """Write what `records` took."""
        folder, form = self.options.records, self.options.records_format
        assert folder is not None
        records.write(folder / f"{self._name}.{form}", form)
