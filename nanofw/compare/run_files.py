"""Files that a run writes beside its result: its decision log, and a line for every request."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nanofw.assembly import Selection
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.records import RequestRecords
from nanofw.decisions.recorder import recording
from nanofw.engine.base import BaseEngine
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError


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
        arm = re.sub(r"[^\w.,=-]+", "-", self.arm)
        point = "" if self.point is None else f"_{self.point:g}"
        return f"{arm}{point}_{self.repeat + 1}"

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
