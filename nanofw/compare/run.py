"""One run of one arm: a fresh engine, a fresh workload, and what came of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanofw.assembly import Selection, build, build_workload
from nanofw.compare.experiment import ExperimentOptions, Slo
from nanofw.compare.metrics import Measured, jain
from nanofw.compare.observe import ObservedExecutor
from nanofw.compare.statistics import MIN_RUNS, within_run_interval
from nanofw.core.clock import Clock
from nanofw.core.contracts.workload import Workload
from nanofw.core.engine import Engine
from nanofw.core.types import FinishReason, FloatArray, Request, RequestOutput
from nanofw.workloads.drive import drive
from nanofw.workloads.latencies import request_latencies

GROWTH_LIMIT = 0.1
"""Overload: more than this share of the measured arrivals was still waiting at their end, and
the queue had grown since the middle."""
LAG_LIMIT = 0.01
"""A client lags when it hands requests over later than this share of their mean E2EL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run came to.

    Attributes:
        values: by metric name.
        num_measured: requests between warm-up and drain.
        checksum: of all token ids by request: equal work gives equal sums.
        overloaded: the queue was still growing when arrivals ended.
        lag_s: how late the client handed requests over, in the worst case, its own fault alone.
        lagging: that was too late.
        capacity: requests per second while any were waiting, for runs that arrive at once.
        within: by metric, an interval of this run's own mean, where there are too few runs for
            a verdict. It says nothing of other traffic.
        notes: sentences for the report.
    """

    values: dict[str, float]
    num_requests: int
    num_refused: int
    num_measured: int
    num_output_tokens: int
    num_steps: int
    seconds: float
    checksum: int
    overloaded: bool
    lag_s: float
    lagging: bool
    capacity: float
    notes: tuple[str, ...]
    within: dict[str, tuple[float, float]]


def run_once(
    selection: Selection,
    options: ExperimentOptions,
    *,
    seed: int,
    time_scale: float,
    clock: Clock | None = None,
) -> RunResult:
    """Run a workload through a fresh engine and measure it, by the clock of `build`."""
    with build(selection, clock=clock) as engine:
        return run_on(engine, selection, options, seed=seed, time_scale=time_scale)


def run_on(
    engine: Engine,
    selection: Selection,
    options: ExperimentOptions,
    *,
    seed: int,
    time_scale: float,
) -> RunResult:
    """The same on an engine of the selection that is there already. It should be fresh."""
    start = engine.clock.now()
    workload = build_workload(selection, seed=seed, start=start, time_scale=time_scale)
    took = engine.clock.now() - start
    if took > 0:  # in real time the first request comes once the traffic is ready
        start += 3 * took
        workload = build_workload(selection, seed=seed, start=start, time_scale=time_scale)
    return measure(engine, workload, options)


def measure(engine: Engine, workload: Workload, options: ExperimentOptions) -> RunResult:
    """Run a workload through an engine and measure it. The engine should be fresh."""
    executor = engine.executor
    watch = engine.executor = ObservedExecutor(executor, engine.clock)
    try:
        return _Run(engine, watch, workload, options).result()
    finally:
        engine.executor = executor


class _Run:
    """The work of `run_once`."""

    def __init__(
        self,
        engine: Engine,
        watch: ObservedExecutor,
        workload: Workload,
        options: ExperimentOptions,
    ) -> None:
        self._engine, self._watch, self._options = engine, watch, options
        self._workload = workload
        self._outputs: list[RequestOutput] = []
        self._client_of: dict[str, str] = {}
        self._handed_over = engine.clock.now()
        self._lag = 0.0
        self._started = engine.clock.now()
        for step in drive(engine, workload, self._accept):
            for output in step.finished:
                watch.ended(output.id)
                self._outputs.append(output)
            self._handed_over = engine.clock.now()
        self._finished = engine.clock.now()

    def _accept(self, request: Request, now: float) -> None:
        """Lateness that a step in progress does not explain is the client's own."""
        assert request.arrival is not None
        self._lag = max(self._lag, now - max(request.arrival, self._handed_over))
        self._watch.service.accept(request)
        self._client_of[request.id] = request.client

    def result(self) -> RunResult:
        done = [o for o in self._outputs if o.finish_reason is not FinishReason.REFUSED]
        arrivals = np.array([o.arrival for o in done])
        start, end = self._window(arrivals)
        inside = [o for o in done if start <= o.arrival <= end]
        measured = self._measure(inside, start, end)
        e2el = float(np.nanmean(measured.latencies["e2el"])) if inside else 0.0
        num_tokens = sum(len(o.token_ids) for o in done)
        return RunResult(
            values={name: measured.value(name) for name in self._options.all_metrics},
            num_requests=len(self._outputs),
            num_refused=len(self._outputs) - len(done),
            num_measured=len(inside),
            num_output_tokens=num_tokens,
            num_steps=self._watch.num_steps,
            seconds=self._finished - self._started,
            checksum=checksum(done),
            overloaded=_overloaded(done, start, end),
            lag_s=self._lag,
            lagging=self._lag > LAG_LIMIT * e2el,
            capacity=self._capacity(done),
            notes=self._notes(done),
            within=self._within(measured, inside),
        )

    def _window(self, arrivals: FloatArray) -> tuple[float, float]:
        """The measured part: arrivals less warm-up and drain."""
        if not len(arrivals):
            return self._started, self._finished
        first, span = float(arrivals.min()), float(np.ptp(arrivals))
        if span == 0:
            return self._started, self._finished
        return first + self._options.warm_up * span, first + (1 - self._options.drain) * span

    def _measure(self, inside: list[RequestOutput], start: float, end: float) -> Measured:
        seconds = max(end - start, 1e-12)
        latencies = request_latencies(inside)
        gaps, weights = self._watch.gaps(start, end)
        good = meets(self._options.slo, latencies)
        prompts = sum(o.num_prompt_tokens for o in inside)
        num, service = max(len(inside), 1), self._watch.service
        whole = {
            "throughput.tokens": self._watch.num_tokens(start, end) / seconds,
            "throughput.requests": sum(start <= o.finished <= end for o in self._outputs) / seconds,
            "goodput.rate": float(good.sum()) / seconds,
            "goodput.share": float(good.mean()) if len(good) else float("nan"),
            "preemptions": sum(o.num_preemptions for o in inside) / num,
            "recomputed_tokens": sum(o.num_recomputed_tokens for o in inside) / num,
            "cache.hit_rate": sum(o.num_cached_tokens for o in inside) / max(prompts, 1),
            "service.gap": service.max_gap,
            "service.jain": jain(service.total),
        }
        return Measured(
            latencies=latencies,
            clients=[self._client_of[o.id] for o in inside],
            itl=gaps,
            itl_weights=weights,
            whole=whole,
        )

    def _within(
        self, measured: Measured, inside: list[RequestOutput]
    ) -> dict[str, tuple[float, float]]:
        if self._options.repeats >= MIN_RUNS:
            return {}
        order = np.argsort([o.arrival for o in inside], kind="stable")
        found: dict[str, tuple[float, float]] = {}
        for name, values in measured.latencies.items():
            defined = values[order]
            defined = defined[~np.isnan(defined)]
            found[f"{name}.mean"] = within_run_interval(defined, alpha=self._options.alpha)
        return found

    def _capacity(self, done: list[RequestOutput]) -> float:
        """Requests' worth of tokens per second until the last request was admitted.

        Counted in tokens, so that a policy that serves short requests first gains nothing.
        """
        ends = [o.scheduled for o in done if o.scheduled is not None]
        seconds = max(ends, default=self._started) - self._started
        if seconds <= 0:
            seconds = self._finished - self._started
        until = self._started + seconds
        total = sum(len(o.token_ids) for o in done)
        if not total or seconds <= 0:
            return float("nan")
        return len(done) * self._watch.num_tokens(self._started, until) / total / seconds

    def _notes(self, done: list[RequestOutput]) -> tuple[str, ...]:
        notes = list(self._workload.notes)
        failed = [o for o in done if o.finish_reason is FinishReason.ERROR]
        if failed:
            notes.append(f"{len(failed)} requests failed: {failed[0].error}")
        hits = sum(o.num_cached_tokens for o in done)
        if hits and not self._workload.shares_prefixes:
            notes.append(
                f"{hits} prompt tokens were found in the prefix cache though no two prompts of "
                "this traffic begin alike: the cache was not empty at the start"
            )
        refused = [o for o in self._outputs if o.finish_reason is FinishReason.REFUSED]
        if refused:
            notes.append(f"{len(refused)} requests were refused: {refused[0].error}")
        return tuple(notes)


def meets(slo: Slo, latencies: dict[str, FloatArray]) -> Any:
    """bool[n]: whether each request meets every limit that is set; undefined TPOT does."""
    good = np.ones(len(latencies["e2el"]), np.bool_)
    for name in ("ttft", "tpot", "e2el"):
        limit: float | None = getattr(slo, f"{name}_s")
        if limit is not None:
            good &= ~(latencies[name] > limit)
    return good


def checksum(outputs: list[RequestOutput]) -> int:
    """Depends on every request's token ids, not on the order in which they ended."""
    total = 0
    for output in outputs:
        total ^= zlib.crc32(output.token_ids.tobytes(), zlib.crc32(output.id.encode()))
    return total


def _overloaded(outputs: list[RequestOutput], start: float, end: float) -> bool:
    """Whether the queue was long when the measured part ended, and had grown since its middle."""
    middle = (start + end) / 2
    waiting = {
        at: sum(o.arrival <= at and (o.scheduled is None or o.scheduled > at) for o in outputs)
        for at in (middle, end)
    }
    arrived = sum(start <= o.arrival <= end for o in outputs)
    return waiting[end] > max(GROWTH_LIMIT * arrived, waiting[middle])
