"""All runs of an experiment: capacity first, then every arm on the same traffic."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread

from nanofw.assembly import Selection, build_workload, chosen_workload, select
from nanofw.compare.arms import select_arms
from nanofw.compare.capacity import Capacity, find_capacity
from nanofw.compare.experiment import AA, Experiment
from nanofw.compare.metrics import Metric
from nanofw.compare.run import RunResult, run_once
from nanofw.decisions.recorder import recording
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError, ExecutorError
from nanofw.machine import num_usable_cores
from nanofw.measure.progress import ProgressReport, silent

AA_SEED = 1_000_003
"""Added to the seed of an A/A run in virtual time, so that its arrivals are others."""


def arm_at(arm: str, point: float | None) -> str:
    """An arm at a load or rate, for reports: `fcfs at 0.9`."""
    return arm if point is None else f"{arm} at {point:g}"


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
    capacity_found: Capacity | None = None
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
        return self.selections[self.experiment.baseline].virtual_time


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
    report(0, 1, "capacity")
    tasks = list(_tasks(results))
    done: list[tuple[Task, RunResult]] = []
    try:
        if results.virtual:
            _in_processes(experiment, tasks, report, done)
        else:
            _one_by_one(selections, experiment, tasks, report, done)
    except BaseException:
        if done:
            _settle(results, tasks, done)
            on_stop(results)
        raise
    _settle(results, tasks, done)
    return results


def _settle(
    results: Results, tasks: Sequence[Task], done: Sequence[tuple[Task, RunResult]]
) -> None:
    """Note what was done, keys of `runs` in the order in which the tasks name them."""
    results.order = [task for task, _ in done]
    results.missing = [task for task in tasks if task not in results.order]
    for task, result in sorted(done, key=lambda item: item[0].repeat):
        results.runs.setdefault((task.point, task.arm), []).append(result)
    names = dict.fromkeys((task.point, task.arm) for task in tasks)
    results.runs = {name: results.runs[name] for name in names if name in results.runs}


def _tasks(results: Results) -> Iterator[Task]:
    """Real arms take turns, forwards and backwards, so that drift hits all of them alike."""
    experiment, options = results.experiment, results.experiment.options
    arms = [*experiment.arms, *([AA] if options.aa else [])]
    rates = _rates(results)
    for repeat in range(options.repeats):
        seeds = {arm: _seed(results, arm, repeat) for arm in arms}
        scales = {seed: _time_scales(results, rates, seed) for seed in set(seeds.values())}
        for point in rates or (None,):
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                yield Task(arm, point, repeat, seeds[arm], scales[seeds[arm]][point])


def _seed(results: Results, arm: str, repeat: int) -> int:
    other = AA_SEED if arm == AA and results.virtual else 0
    return results.experiment.options.seed + repeat + other


def _rates(results: Results) -> dict[float | None, float]:
    """Arrivals per second by load or rate; empty: as the workload says."""
    options, baseline = results.experiment.options, results.experiment.baseline
    if options.rates is not None:
        return {rate: rate for rate in options.rates}
    if options.loads is None:
        return {}
    selection = results.selections[baseline]
    _rate(selection, options.seed)  # before the bursts, not after them
    if options.capacity is not None:
        found = Capacity.given(options.capacity)
    else:
        found = find_capacity(selection, results.experiment)
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


def _one_by_one(
    selections: dict[str, Selection],
    experiment: Experiment,
    tasks: Sequence[Task],
    report: ProgressReport,
    done: list[tuple[Task, RunResult]],
) -> None:
    for task in tasks:
        report(len(done), len(tasks), _label(task))
        done.append((task, _run(selections, experiment, task)))
    report(len(tasks), len(tasks), "")


def _run(selections: dict[str, Selection], experiment: Experiment, task: Task) -> RunResult:
    options, selection = experiment.options, selections[_base(experiment, task.arm)]
    return run_once(
        selection, options, seed=task.seed, time_scale=task.time_scale,
        noted=_noted(options.decisions, selection, task),
    )  # fmt: skip


def _base(experiment: Experiment, arm: str) -> str:
    """The arm whose configuration it has."""
    return experiment.baseline if arm == AA else arm


def _noted(
    folder: Path | None, selection: Selection, task: Task
) -> Callable[[Engine], AbstractContextManager[None]] | None:
    """What writes a run's decision log, where there is to be one."""
    if folder is None:
        return None
    arm = re.sub(r"[^\w.,=-]+", "-", task.arm)
    point = "" if task.point is None else f"_{task.point:g}"
    path = folder / f"{arm}{point}_{task.repeat + 1}.jsonl"

    def noted(engine: Engine) -> AbstractContextManager[None]:
        return recording(engine, selection, path, arm=task.arm, point=task.point, seed=task.seed)

    return noted


def _in_processes(
    experiment: Experiment,
    tasks: Sequence[Task],
    report: ProgressReport,
    done: list[tuple[Task, RunResult]],
) -> None:
    wanted = experiment.options.processes
    num = min(len(tasks), num_usable_cores() if wanted == "auto" else wanted)
    if num <= 1:
        selections = {arm: select(experiment.load(arm)) for arm in experiment.arms}
        _one_by_one(selections, experiment, tasks, report, done)
        return
    others = set(active_children())
    context = get_context("spawn")
    with ProcessPoolExecutor(num, context, initializer=_prepare, initargs=(experiment,)) as pool:
        futures: dict[Future[RunResult], Task] = {}
        try:
            futures.update((pool.submit(_work, task), task) for task in tasks)
            for future in as_completed(futures):
                task = futures.pop(future)
                done.append((task, future.result()))
                report(len(done), len(tasks), _label(task))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:  # what runs would run to its end
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise ExecutorError(
                    "a process that carried out runs was ended from outside, as happens when "
                    f"memory runs out: {num} of them worked at once; try compare.processes=1"
                ) from error
            raise


_experiment: Experiment | None = None
_selections: dict[str, Selection] = {}


def _prepare(experiment: Experiment) -> None:
    """A worker process starts: it selects the components itself, from names."""
    global _experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all; one answers
    Thread(target=_end_with_parent, name="nanofw-parent", daemon=True).start()
    _experiment = experiment


def _end_with_parent() -> None:
    """A worker whose parent is gone has nobody to work for; it would hold the parent's pipes."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(task: Task) -> RunResult:
    assert _experiment is not None
    arm = _base(_experiment, task.arm)
    if arm not in _selections:
        _selections[arm] = select(_experiment.load(arm))
    return _run(_selections, _experiment, task)


def _label(task: Task) -> str:
    return f"{arm_at(task.arm, task.point)}, run {task.repeat + 1}"
