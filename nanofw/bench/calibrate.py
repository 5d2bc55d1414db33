"""Measure steps of a real engine and fit a cost model to them: `nanofw calibrate`.

The engine serves closed loops of 1, 2, 4, ... users with prompts and outputs of all lengths, and
waves of users who come at once, so that steps of every mix occur. A step's time is that between
one collected step and the next while the engine is busy: planning, committing and the device, as
requests feel them. With a step in flight these happen at once, and cannot be told from that time:
then the device says how long it was busy, and the time of the host is fitted apart.
"""

# scipy does not state its types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from nanofw.assembly import Selection, build
from nanofw.config.schema import Section
from nanofw.contracts.arrays import FloatArray, LongArray
from nanofw.contracts.clock import Clock
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.workload import WorkloadConfig
from nanofw.engine.engine import Engine
from nanofw.measure.drive import drive
from nanofw.measure.progress import ProgressReport, silent
from nanofw.sim.fitted import FEATURES, Fit
from nanofw.sim.work import StepWork
from nanofw.workloads.closed_loop import ClosedLoop, ClosedLoopOptions
from nanofw.workloads.lengths import Fixed, Lengths, Uniform

FOLDS = 5
HICCUP = 5.0
"""A step that took longer than this many times its prediction was held up by something else, and
is left out."""


class Design(Section):
    """Settings of `nanofw calibrate`."""

    requests_per_user: PositiveInt = 6
    """Requests of each user in a closed loop."""
    max_users: PositiveInt | None = None
    """Users in the largest loop; null: `engine.max_num_seqs`."""
    max_prompt: PositiveInt | None = None
    """Longest prompt, in tokens; null: half of the model's length."""
    max_output: PositiveInt = 48
    """Longest output, in tokens."""
    waves: NonNegativeInt = 3
    """How often all users of a loop come at once, so that a step has many prompts."""
    repeats: PositiveInt = 1
    """How often everything is run, with other lengths each time."""
    seed: int = 0
    """Seed of prompts and lengths."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of the engine, measured.

    Attributes:
        seconds: of the device and the host; with a step in flight, of the device alone.
        loop: which closed loop it belongs to.
        host_seconds: with a step in flight: of the host, from the step collected before until
            this one was submitted; None: not known.
    """

    work: StepWork
    seconds: float
    loop: int
    host_seconds: float | None = None


class StepTimes(StepObserver):
    """Notes what each step took.

    Args:
        overlap: a step stays in flight.
    """

    def __init__(self, *, overlap: bool) -> None:
        self._overlap = overlap
        self._pending: list[tuple[StepWork, float | None]] = []
        self._collected: float | None = None
        self._host_free: float | None = None  # since when the host has worked on the next plan
        self._work: StepWork | None = None
        self.steps: list[tuple[StepWork, float, float | None]] = []

    def idle(self) -> None:
        """The engine has nothing to do: the next step has no step before it."""
        self._collected = self._host_free = None

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._work = StepWork.of(plan, self._work)
        host = now - self._host_free if self._overlap and self._host_free is not None else None
        self._pending.append((self._work, host))
        self._host_free = now

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        work, host = self._pending.pop(0)
        if self._overlap and result.seconds is not None:
            self.steps.append((work, result.seconds, host))
        elif self._collected is not None:
            self.steps.append((work, now - self._collected, None))
        self._collected = self._host_free = now


def record(
    selection: Selection,
    design: Design,
    clock: Clock | None = None,
    report: ProgressReport = silent,
) -> list[MeasuredStep]:
    """Run the design on a fresh engine. A first loop warms up and is not kept.

    `report` hears of each loop, not of each request: that would be in the times of steps.
    """
    with build(selection, clock=clock) as engine:
        return record_on(engine, selection, design, report)


def record_on(
    engine: Engine, selection: Selection, design: Design, report: ProgressReport = silent
) -> list[MeasuredStep]:
    """The same on an engine of the selection that is there already, and idle."""
    found: list[MeasuredStep] = []
    loops = list(_loops(selection, design))
    total, done = sum(workload.num_requests for _, workload in loops), 0
    watch = StepTimes(overlap=engine.overlap)
    with engine.observed_by(watch):
        for loop, (text, workload) in enumerate(loops):
            report(done, total, text)
            watch.idle()
            watch.steps = []
            for _ in drive(engine, workload):
                pass
            if loop:
                found += [
                    MeasuredStep(work, seconds, loop, host) for work, seconds, host in watch.steps
                ]
            done += workload.num_requests
        report(done, total, "")
    return found


def _loops(selection: Selection, design: Design) -> Iterator[tuple[str, ClosedLoop]]:
    """What is run, with what it is for readers."""
    longest = selection.max_model_len
    most = design.max_users or selection.loaded.config.engine.max_num_seqs
    users = [2**i for i in range(most.bit_length()) if 2**i <= most]
    prompt = min(design.max_prompt or longest // 2, longest - 2)
    output = max(1, min(design.max_output, longest - prompt - 1))
    prompts = Uniform(distribution="uniform", low=1, high=prompt)
    outputs = Uniform(distribution="uniform", low=1, high=output)
    loops: list[tuple[int, int, Lengths]] = [
        (num, max(8, num * design.requests_per_user), outputs) for num in users
    ]
    # Outputs of one length end together, and so the next prompts come together.
    waves: list[tuple[int, int, Lengths]] = [
        (num, num * design.waves, Fixed(tokens=min(4, output))) for num in users[1:]
    ]
    warm_up = loops[-1]
    loops += waves if design.waves else []
    for number, (num, count, lengths) in enumerate([warm_up, *loops * design.repeats]):
        options = ClosedLoopOptions(
            num_requests=count, concurrency=num, prompt=prompts, output=lengths
        )
        config = WorkloadConfig(
            vocab_size=selection.spec.vocab_size,
            max_model_len=longest,
            seed=design.seed + number,
            sampling=selection.loaded.config.sampling,
        )
        kind = "waves" if lengths is not outputs else "loop" if number else "warm-up"
        yield f"{kind}, {num} user{'s' if num > 1 else ''}", ClosedLoop(options, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a fit is off, on steps that it has not seen.

    Attributes:
        median, p90: of the relative error of single steps.
        total: relative error of the sum over a held-out part, the worst of all parts.
    """

    median: float
    p90: float
    total: float


def fit(
    steps: Sequence[MeasuredStep], about: Mapping[str, object] | None = None
) -> tuple[Fit, Errors]:
    """Fit by non-negative least squares of relative errors, cross-validated.

    Each of `FOLDS` parts, a stretch of time, is predicted from the others.

    Raises:
        ValueError: there are too few steps.
    """
    if len(steps) < 10 * FOLDS:
        raise ValueError(f"{len(steps)} steps are too few to fit; at least {10 * FOLDS} are needed")
    counts = _counts(steps)
    seconds = np.array([s.seconds for s in steps])
    found, num_hiccups = _cross_validate(counts, seconds)
    made = Fit(
        coefficients=_coefficients(counts, seconds),
        host=_fit_host(steps),
        about={
            **(about or {}),
            "num_steps": len(steps),
            "num_hiccups": num_hiccups,
            "cross_validated": {
                "median_error": found.median, "p90_error": found.p90, "total_error": found.total,
            },
        },
    )  # fmt: skip
    return made, found


def _cross_validate(counts: FloatArray, seconds: FloatArray) -> tuple[Errors, int]:
    """The errors, and how many steps were held up by something else."""
    parts = np.arange(len(seconds)) * FOLDS * 4 // len(seconds) % FOLDS
    errors, totals = list[FloatArray](), list[float]()
    for part in range(FOLDS):
        held = parts == part
        predicted = counts[held] @ _solve(counts[~held], seconds[~held])
        sane = seconds[held] <= HICCUP * predicted
        predicted, measured = predicted[sane], seconds[held][sane]
        errors.append(np.abs(predicted / measured - 1))
        totals.append(abs(float(predicted.sum() / measured.sum()) - 1))
    every = np.concatenate(errors)
    found = Errors(
        median=float(np.median(every)), p90=float(np.percentile(every, 90)), total=max(totals)
    )
    return found, len(seconds) - len(every)


def _fit_host(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Empty where the time of the host is not known, or none."""
    known = [step for step in steps if step.host_seconds is not None and step.host_seconds > 0]
    if len(known) < 10 * FOLDS:
        return {}
    return _coefficients(_counts(known), np.array([step.host_seconds for step in known], float))


def _counts(steps: Sequence[MeasuredStep]) -> FloatArray:
    """float64[steps, features]"""
    return np.array([[FEATURES[name](s.work) for name in FEATURES] for s in steps], np.float64)


def _coefficients(counts: FloatArray, seconds: FloatArray) -> dict[str, float]:
    names = zip(FEATURES, _solve(counts, seconds).tolist(), strict=True)
    return {name: value for name, value in names if value > 0}


def _solve(counts: FloatArray, seconds: FloatArray) -> FloatArray:
    """Coefficients whose sum over all steps is the measured one.

    Steps that a first fit shows to be hiccups are left out of the second.
    """
    first = _nonnegative(counts, seconds, seconds)
    sane = seconds <= HICCUP * np.maximum(counts @ first, 1e-9)
    counts, seconds = counts[sane], seconds[sane]
    # By what is expected, not by what came: else what came late would count for less.
    second = _nonnegative(counts, seconds, np.maximum(counts @ first, 1e-9))
    return second * float(seconds.sum() / (counts @ second).sum())


def _nonnegative(counts: FloatArray, seconds: FloatArray, scale_s: FloatArray) -> FloatArray:
    """Least squares of the errors as shares of `scale_s`."""
    from scipy.optimize import nnls

    unit = np.maximum(counts.max(axis=0), 1e-12)
    answer: object = nnls(counts / unit / scale_s[:, None], seconds / scale_s)
    return np.asarray(answer[0], float) / unit


def table(steps: Sequence[MeasuredStep], made: Fit) -> list[tuple[str, int, float, float]]:
    """By number of rows: steps, mean measured and mean predicted seconds."""
    rows: LongArray = np.array([step.work.num_rows for step in steps])
    predicted = np.array([made.seconds(step.work) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    lines: list[tuple[str, int, float, float]] = []
    for exponent in range(int(rows.max()).bit_length()):
        low, high = 2**exponent, 2 ** (exponent + 1) - 1
        inside = (rows >= low) & (rows <= high)
        if inside.any():
            name = str(low) if low == high else f"{low} to {high}"
            means = float(seconds[inside].mean()), float(predicted[inside].mean())
            lines.append((name, int(inside.sum()), *means))
    return lines
