"""All runs of an experiment: capacity first, then every arm on the same traffic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from nanofw.assembly import Selection, build_workload, chosen_workload
from nanofw.compare.arms import select_arms
from nanofw.compare.capacity import LoadCapacity, find_capacity
from nanofw.compare.experiment import AA, Experiment
from nanofw.compare.kept_runs import KeptRuns
from nanofw.compare.looks import Looks, wide_effects
from nanofw.compare.metrics import Metric
from nanofw.compare.processes import workers
from nanofw.compare.records import check_format
from nanofw.compare.results import Results
from nanofw.compare.run import RunResult
from nanofw.compare.run_files import check_names
from nanofw.compare.task import Task
from nanofw.errors import ConfigError
from nanofw.measure.progress import ProgressReport, silent

AA_SEED = 1_000_003
"""Added to the seed of an A/A run in virtual time, so that its arrivals are others."""


def run_experiment(
    experiment: Experiment,
    report: ProgressReport = silent,
    on_stop: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Do all runs. Raises what `select` and a run raise; nothing is swallowed.

    Args:
        on_stop: given what was finished when an error or an interrupt ends the experiment after
            the first run, before that is raised.
    """
    selections = select_arms(experiment)
    for selection in selections.values():  # before the first run, not at the arm's turn
        chosen_workload(selection)
    results = Results(experiment, selections)
    _check_clients(results)
    check_names(experiment.options, _arms(results))
    if experiment.options.records is not None:
        check_format(experiment.options.records_format)
    report(0, 1, "capacity")
    kept = KeptRuns(experiment, selections)
    try:
        _carry_out(results, kept, report, on_stop)
    finally:
        kept.close()
    return results


def _carry_out(
    results: Results,
    kept: KeptRuns,
    report: ProgressReport,
    on_stop: Callable[[Results], None],
) -> None:
    """Do all runs but those that were kept."""
    rates = _rates(results, kept)
    points: list[float | None] = list(rates) or [None]
    tasks: list[Task] = []
    done: list[tuple[Task, RunResult]] = []

    def take(task: Task, result: RunResult) -> None:
        done.append((task, result))
        kept.add(task, result)

    looks = (0, *Looks.planned(results.experiment.options).numbers)
    num_at_once = len(points) * len(_arms(results)) * (looks[-1] - looks[-2])
    try:
        with workers(results.experiment, results.selections, num_at_once, report) as carry_out:
            for begin, end in itertools.pairwise(looks):
                wanted = list(_tasks(results, rates, range(begin, end), points))
                tasks += wanted
                done += [(task, kept.runs[task]) for task in wanted if task in kept.runs]
                carry_out([task for task in wanted if task not in kept.runs], take)
                _settle(results, tasks, done)
                points = [point for point in points if wide_effects(results, point)]
    except BaseException:
        if done:
            _settle(results, tasks, done)
            on_stop(results)
        raise


def _settle(
    results: Results, tasks: Sequence[Task], done: Sequence[tuple[Task, RunResult]]
) -> None:
    """Note what was done, keys of `runs` in the order in which the tasks name them."""
    results.order = [task for task, _ in done]
    results.missing = [task for task in tasks if task not in results.order]
    results.runs = {}
    for task, result in sorted(done, key=lambda item: item[0].repeat):
        results.runs.setdefault((task.point, task.arm), []).append(result)
    names = dict.fromkeys((task.point, task.arm) for task in tasks)
    results.runs = {name: results.runs[name] for name in names if name in results.runs}


def _arms(results: Results) -> list[str]:
    experiment = results.experiment
    return [*experiment.arms, *([AA] if experiment.options.aa else [])]


def _tasks(
    results: Results,
    rates: Mapping[float | None, float],
    repeats: Sequence[int],
    points: Sequence[float | None],
) -> Iterator[Task]:
    """Real arms take turns, forwards and backwards, so that drift hits all of them alike."""
    arms = _arms(results)
    for repeat in repeats if points else ():
        seeds = {arm: _seed(results, arm, repeat) for arm in arms}
        scales = {seed: _time_scales(results, rates, seed) for seed in set(seeds.values())}
        for point in points:
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                yield Task(arm, point, repeat, seeds[arm], scales[seeds[arm]][point])


def _seed(results: Results, arm: str, repeat: int) -> int:
    other = AA_SEED if arm == AA and results.virtual else 0
    return results.experiment.options.seed + repeat + other


def _rates(results: Results, kept: KeptRuns) -> dict[float | None, float]:
    """Arrivals per second by load or rate; empty: as the workload says."""
    options, baseline = results.experiment.options, results.experiment.baseline
    if options.rates is not None:
        return {rate: rate for rate in options.rates}
    if options.loads is None:
        return {}
    selection = results.selections[baseline]
    _rate(selection, options.seed)  # before the bursts, not after them
    if options.capacity is not None:
        found = LoadCapacity.given(options.capacity)
    else:
        found = kept.capacity or find_capacity(selection, results.experiment)
        kept.note_capacity(found)
    results.capacity_found, results.capacity = found, found.rate
    return {load: load * found.rate for load in options.loads}


def _time_scales(
    results: Results, rates: Mapping[float | None, float], seed: int
) -> dict[float | None, float]:
    """By load: the traffic of each seed, a window of a trace for example, has its own rate."""
    if not rates:
        return {None: 1.0}
    rate = _rate(results.selections[results.experiment.baseline], seed)
    return {point: rate / wanted for point, wanted in rates.items()}


def _rate(selection: Selection, seed: int) -> float:
    rate = build_workload(selection, seed=seed).rate
    if rate is None:
        raise selection.loaded.error(
            "has no arrival rate, so there are no loads or rates of it; leave both out",
            ("input", "workload"),
        )
    return rate


def _check_clients(results: Results) -> None:
    """Refuse metrics of a client that has no request, where requests are known beforehand."""
    options = results.experiment.options
    wanted = {metric.client: name for name in options.all_metrics
              if (metric := Metric.parse(name)).client is not None}  # fmt: skip
    seen: set[str] = set()
    for repeat in range(options.repeats if wanted else 0):
        selection = results.selections[results.experiment.baseline]
        workload = build_workload(selection, seed=options.seed + repeat)
        num = 0
        for request in workload.initial():
            seen.add(request.client)
            num += 1
        if wanted.keys() <= seen or num < workload.num_requests:
            return
    for client, name in wanted.items():
        if client not in seen:
            raise ConfigError(
                f"{name!r}: no request is of a client {client!r}; the traffic has "
                f"{', '.join(map(repr, sorted(seen)))}",
                key="primary" if name == options.primary else "metrics",
            )
