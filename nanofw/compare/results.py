"""What all runs of an experiment came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanofw.assembly import Selection
from nanofw.compare.capacity import LoadCapacity
from nanofw.compare.experiment import Experiment
from nanofw.compare.run import RunResult
from nanofw.compare.task import Task


@dataclass(slots=True)
class Results:
    """What all runs came to, by point and arm, in the order of the repeats.

    Attributes:
        capacity: requests per second at load 1; None where nothing depends on it.
        capacity_found: the same, and how sure it is.
        order: tasks in the order in which they were done.
        missing: tasks that were not finished when something ended the experiment early.
    """

    experiment: Experiment
    selections: dict[str, Selection]
    capacity: float | None = None
    capacity_found: LoadCapacity | None = None
    runs: dict[tuple[float | None, str], list[RunResult]] = field(
        default_factory=dict[tuple[float | None, str], list[RunResult]]
    )
    order: list[Task] = field(default_factory=list[Task])
    missing: list[Task] = field(default_factory=list[Task])

    @property
    def points(self) -> tuple[float | None, ...]:
        """Loads or rates, in the order of the experiment."""
        return tuple(dict.fromkeys(point for point, _ in self.runs))

    def repeats(self, point: float | None, arm: str) -> list[int]:
        """Numbers of the runs of an arm at a point, in the order of `runs`."""
        return sorted(task.repeat for task in self.order if (task.point, task.arm) == (point, arm))

    @property
    def virtual(self) -> bool:
        """Whether the runs were simulated."""
        if self.experiment.endpoints:
            return False
        return self.selections[self.experiment.baseline].virtual_time
