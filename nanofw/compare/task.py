"""One run that is to be done, and how it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanofw.assembly import Selection
from nanofw.compare.experiment import AA, Experiment
from nanofw.compare.run import RunResult, run_once
from nanofw.compare.run_files import RunFiles
from nanofw.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        arm: a name of the experiment, or `AA`.
        point: the load or rate as the experiment writes it; None: as the workload says.
        time_scale: of the workload, so that arrivals have the rate of the point.
    """

    arm: str
    point: float | None
    repeat: int
    seed: int
    time_scale: float

    @property
    def label(self) -> str:
        """For reports: `fcfs at 0.9, run 3`."""
        return f"{arm_at(self.arm, self.point)}, run {self.repeat + 1}"


def arm_at(arm: str, point: float | None) -> str:
    """An arm at a load or rate, for reports: `fcfs at 0.9`."""
    return arm if point is None else f"{arm} at {point:g}"


def configured_arm(experiment: Experiment, arm: str) -> str:
    """The arm of the experiment whose configuration it has."""
    return experiment.baseline if arm == AA else arm


def carry_out(experiment: Experiment, selections: Mapping[str, Selection], task: Task) -> RunResult:
    """Do the run. `selections`: by arm of the experiment."""
    selection = selections[configured_arm(experiment, task.arm)]
    if (url := experiment.endpoints.get(task.arm)) is not None:
        if experiment.measure_endpoint is None:
            raise ConfigError("endpoints are measured by the command nanofw compare", key="arms")
        return experiment.measure_endpoint(selection, experiment.options, url, task)
    files = RunFiles(
        options=experiment.options, arm=task.arm, point=task.point, repeat=task.repeat,
        seed=task.seed,
    )  # fmt: skip
    return run_once(
        selection, experiment.options, seed=task.seed, time_scale=task.time_scale, files=files
    )
