"""Whether an arm's runs can be compared with the baseline's at all, and how many there are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from nanofw.assembly.provenance import run_record
from nanofw.compare.endpoints import root_of
from nanofw.compare.experiment import AA
from nanofw.compare.metrics import Metric
from nanofw.compare.results import Results
from nanofw.compare.run import RunResult
from nanofw.compare.statistics import MIN_RUNS

SERVED_OTHERS = "it served other requests than the baseline"
OTHER_LENGTHS = "its answers are shorter or longer than the baseline's"
SERVED_LESS = frozenset({SERVED_OTHERS, OTHER_LENGTHS})
"""Reasons that leave one verdict: whoever does less and has less throughput is worse."""
COUNTS_ALL = frozenset({"goodput.rate", "goodput.share"})
"""Metrics that count requests which were refused or failed against the arm."""


def identical_arms(results: Results) -> list[list[str]]:
    """Arms that are the same: those together whose configurations agree in every value and whose
    components come from the same places, or that are endpoints at one address."""
    addresses = results.experiment.endpoints
    groups: dict[str, list[str]] = {}
    for arm, selection in results.selections.items():
        record = run_record(selection)
        parts = [root_of(addresses[arm])] if addresses else [record["config"], record["components"]]
        groups.setdefault(json.dumps(parts, sort_keys=True, default=str), []).append(arm)
    return [arms for arms in groups.values() if len(arms) > 1]


def pairs(results: Results, point: float | None, arm: str) -> list[tuple[RunResult, RunResult]]:
    """The baseline's runs and the arm's, by repeat."""
    base = results.runs[(point, results.experiment.baseline)]
    return list(zip(base, results.runs[(point, arm)], strict=True))


def num_other_traffic(results: Results, point: float | None, arm: str) -> int:
    """In how many runs an arm got other requests than the baseline."""
    if arm == AA:  # on traffic of its own
        return 0
    return sum(not b.traffic.is_that_of(a.traffic) for a, b in pairs(results, point, arm))


def num_served_others(results: Results, point: float | None, arm: str) -> int:
    """In how many runs an arm served other requests to their end than the baseline did."""
    if arm == AA:
        return 0
    return sum(a.served_checksum != b.served_checksum for a, b in pairs(results, point, arm))


def num_other_lengths(results: Results, point: float | None, arm: str) -> int:
    """In how many runs an arm made another number of tokens than the baseline, out of the same
    requests. An endpoint that ends its answers early would look fast."""
    if arm == AA:
        return 0
    both = pairs(results, point, arm)
    return sum(a.num_output_tokens != b.num_output_tokens for a, b in both)


def observations(results: Results, point: float | None, arm: str) -> list[list[int]]:
    """Numbers of the runs, those together that are one observation.

    In virtual time two runs of one arm on the same arrivals and lengths are the same run twice.
    In real time each is a measurement.
    """
    found: dict[object, list[int]] = {}
    for number, (base, run) in enumerate(pairs(results, point, arm)):
        key = (base.traffic.shape, run.traffic.shape) if results.virtual else number
        found.setdefault(key, []).append(number)
    return list(found.values())


def observed(values: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    """One value for each observation: the mean of its runs."""
    return [float(np.mean([values[i] for i in group])) for group in groups]


def no_verdict(results: Results, point: float | None, arm: str, metric: str) -> str | None:
    """Why an arm gets no verdict in a metric at a point; None: it may."""
    if num_other_traffic(results, point, arm):
        return "its traffic is not the baseline's"
    if num_served_others(results, point, arm):
        if metric not in COUNTS_ALL:
            return SERVED_OTHERS
    elif num_other_lengths(results, point, arm):
        return OTHER_LENGTHS
    num = len(results.runs[(point, arm)])
    if num >= MIN_RUNS and len(observations(results, point, arm)) < MIN_RUNS:
        return "its runs are copies of each other"
    return None


def undefined(results: Results, point: float | None, arm: str, metric: str) -> int:
    """Runs in which a metric is not defined, for the arm or the baseline."""
    values = [(a.values[metric], b.values[metric]) for a, b in pairs(results, point, arm)]
    return sum(not (math.isfinite(a) and math.isfinite(b)) for a, b in values)


def is_compared_by_difference(results: Results, point: float | None, arm: str, metric: str) -> bool:
    """Whether a value that is not positive keeps a ratio from being one."""
    values = [(a.values[metric], b.values[metric]) for a, b in pairs(results, point, arm)]
    defined = [pair for pair in values if all(map(math.isfinite, pair))]
    return Metric.parse(metric).by_ratio and any(min(pair) <= 0 for pair in defined)
