"""Runs in several processes, or one after the other where that is wanted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TypeAlias

from nanofw.assembly import Selection, select
from nanofw.compare.experiment import Experiment
from nanofw.compare.run import RunResult
from nanofw.compare.task import Task, carry_out, configured_arm
from nanofw.errors import ExecutorError
from nanofw.machine import num_usable_cores
from nanofw.measure.progress import ProgressReport, silent

Done: TypeAlias = Callable[[Task, RunResult], None]
"""Told of each run as soon as it is finished."""
CarryOut: TypeAlias = Callable[[Sequence[Task], Done], None]
"""Does tasks, in some order."""


@contextmanager
def workers(
    experiment: Experiment,
    selections: Mapping[str, Selection],
    most: int,
    report: ProgressReport = silent,
) -> Generator[CarryOut]:
    """Within it tasks are carried out: real runs one by one, simulated ones in processes.

    Args:
        most: tasks that there will be at once.
    """
    num = _num_processes(experiment, selections, most)
    if num <= 1:
        yield _one_by_one(experiment, selections, report)
        return
    others = set(active_children())
    context = get_context("spawn")
    with ProcessPoolExecutor(num, context, initializer=_prepare, initargs=(experiment,)) as pool:
        try:
            yield _in_pool(pool, report)
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


def _num_processes(experiment: Experiment, selections: Mapping[str, Selection], most: int) -> int:
    if experiment.endpoints or not selections[experiment.baseline].virtual_time:
        return 1
    wanted = experiment.options.processes
    return min(most, num_usable_cores() if wanted == "auto" else wanted)


def _one_by_one(
    experiment: Experiment, selections: Mapping[str, Selection], report: ProgressReport
) -> CarryOut:
    def carry(tasks: Sequence[Task], done: Done) -> None:
        for number, task in enumerate(tasks):
            report(number, len(tasks), task.label)
            done(task, carry_out(experiment, selections, task))
        report(len(tasks), len(tasks), "")

    return carry


def _in_pool(pool: ProcessPoolExecutor, report: ProgressReport) -> CarryOut:
    def carry(tasks: Sequence[Task], done: Done) -> None:
        futures: dict[Future[RunResult], Task] = {}
        futures.update((pool.submit(_work, task), task) for task in tasks)
        for number, future in enumerate(as_completed(futures), 1):
            task = futures.pop(future)
            done(task, future.result())
            report(number, len(tasks), task.label)

    return carry


_experiment: Experiment | None = None
_selections: dict[str, Selection] = {}


def _prepare(experiment: Experiment) -> None:
    """A worker process starts: it selects the components itself, from names."""
    global _experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all; one answers
    Thread(target=_end_with_parent, name="nanofw-parent", daemon=True).start()
    _experiment = experiment


def _end_with_parent() -> None:
    """End a worker whose parent is gone: it would keep the parent's pipes open."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(task: Task) -> RunResult:
    assert _experiment is not None
    arm = configured_arm(_experiment, task.arm)
    if arm not in _selections:
        _selections[arm] = select(_experiment.load(arm))
    return carry_out(_experiment, _selections, task)
