"""Experiments: the same traffic for every arm, then what differs and how sure that is.

experiment = load_experiment("experiment.yaml", ["repeats=5"])
results = run_experiment(experiment)
for row in analyse(results).rows:
print(row.arm, row.metric, row.mean, row.verdict)
"""

from __future__ import annotations

from nanofw.compare.analysis import Analysis, analyse
from nanofw.compare.experiment import Experiment, load_experiment
from nanofw.compare.report import as_json
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.compare.run import RunResult
from nanofw.compare.runner import run_experiment
from nanofw.compare.sustained import ArmCapacity, Capacities, find_capacities

__all__ = [
    "Analysis",
    "ArmCapacity",
    "ArmMetric",
    "Capacities",
    "Experiment",
    "Results",
    "RunResult",
    "analyse",
    "as_json",
    "find_capacities",
    "load_experiment",
    "run_experiment",
]
