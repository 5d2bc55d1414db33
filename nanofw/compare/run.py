"""One run of one arm: a fresh engine, a fresh workload, and what came of it."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanofw.assembly import Selection, build, build_workload
from nanofw.compare.backlog import Backlog
from nanofw.compare.client_service import ClientService
from nanofw.compare.engine_watch import EngineWatch, RunWatch
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.finished import FinishedRequests, FinishedTable
from nanofw.compare.metrics import RunMeasurement, jain
from nanofw.compare.records import RequestRecords
from nanofw.compare.run_curves import over_time, spreads
from nanofw.compare.run_files import RunFiles
from nanofw.compare.statistics import MIN_RUNS, autocorrelation_length, within_run_interval
from nanofw.compare.traffic import ObservedWorkload, TrafficSums
from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.clock import Clock
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload
from nanofw.engine.base import BaseEngine
from nanofw.measure.drive import drive
from nanofw.measure.latencies import latencies
from nanofw.replicas.opening import open_replicas

GUARDS = (
    "ttft.mean", "ttft.p99", "ttft.max", "tpot.mean", "tpot.p99", "itl.p99", "itl.max",
    "e2e.mean", "e2e.p99", "e2e.max", "queue.max",
)  # fmt: skip
MAX_CLIENTS = 10
LAG_LIMIT = 0.01
"""A client lags when it hands requests over later than this share of their mean E2E."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run came to.

    Attributes:
        values: by metric name.
        num_failed: requests that began and ended early: failed or aborted.
        num_measured: requests between warm-up and drain that were served to their end.
        checksum: of all token ids by request: equal work gives equal sums.
        served_checksum: of the ids of requests that were served: latencies are about those alone.
        traffic: what the workload asked for.
        overloaded: much work was waiting when arrivals ended, more than at their middle.
        growth: of the unfinished work in the second half, as a share of what came; 0 on average
            where a run keeps up; NaN with too few requests.
        memory: requests after which the latencies of a run have forgotten themselves.
        host_s: real seconds in which the scheduler accepted, planned and committed.
        fewest_available: the smallest share of the KV pool that was available.
        num_by_client: requests that count, by client.
        guards: latencies that are looked at for harm, by metric.
        lag_s: how late the client handed requests over, in the worst case, its own fault alone.
        lagging: that was too late.
        capacity: requests per second while any were waiting, for runs that arrive at once.
        within: by metric, an interval of this run's own mean, where there are too few runs for
            a verdict. It says nothing of other traffic.
        notes: sentences for the report.
        spreads: latencies at `PERCENTS` of the measured requests, by quantity.
        over_time: requests that wait and run, as means over stretches of the run.
    """

    values: dict[str, float]
    num_requests: int
    num_refused: int
    num_failed: int
    num_measured: int
    num_output_tokens: int
    num_steps: int
    seconds: float
    checksum: int
    served_checksum: int
    traffic: TrafficSums
    overloaded: bool
    growth: float = field(compare=False)  # may be NaN, which equals nothing
    memory: int
    host_s: float = field(compare=False)
    fewest_available: float
    num_by_client: dict[str, int]
    guards: dict[str, float] = field(compare=False)
    lag_s: float
    lagging: bool
    capacity: float
    notes: tuple[str, ...]
    within: dict[str, tuple[float, float]]
    spreads: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    over_time: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


def run_once(
    selection: Selection,
    options: ExperimentOptions,
    *,
    seed: int,
    time_scale: float,
    clock: Clock | None = None,
    files: RunFiles | None = None,
) -> RunResult:
    """Run a workload through a fresh engine and measure it, by the clock of `build`.

    Args:
        files: what the run writes beside its result; None: nothing.
    """
    with (
        _open(selection, clock) as engine,
        files.recording(engine, selection) if files else nullcontext(),
    ):
        return run_on(engine, selection, options, seed=seed, time_scale=time_scale, files=files)


def _open(selection: Selection, clock: Clock | None) -> BaseEngine:
    """A fresh engine, or replicas in virtual time."""
    if selection.loaded.config.engine.replicas == 1:
        return build(selection, clock=clock)
    if clock is not None or not selection.virtual_time:
        raise selection.loaded.error(
            "must be 1 in real time: steps in other processes are not seen; with "
            "executor.name=sim replicas are compared in virtual time",
            ("engine", "replicas"),
        )
    return open_replicas(selection)


def run_on(
    engine: BaseEngine,
    selection: Selection,
    options: ExperimentOptions,
    *,
    seed: int,
    time_scale: float,
    files: RunFiles | None = None,
) -> RunResult:
    """The same on an engine of the selection that is there already. It should be fresh."""
    start = engine.clock.now()
    workload = build_workload(selection, seed=seed, start=start, time_scale=time_scale)
    took = engine.clock.now() - start
    if took > 0:  # in real time the first request comes once the traffic is ready
        start += 3 * took
        workload = build_workload(selection, seed=seed, start=start, time_scale=time_scale)
    return measure(engine, workload, options, files)


def measure(
    engine: BaseEngine,
    workload: Workload,
    options: ExperimentOptions,
    files: RunFiles | None = None,
) -> RunResult:
    """Run a workload through an engine and measure it. The engine should be fresh."""
    records = files.records() if files else None
    result = MeasuredRun(engine, workload, options, records).result()
    if files and records is not None:
        files.write_records(records)
    return result


class MeasuredRun:
    """The work of `run_once`."""

    _watch: RunWatch

    def __init__(
        self,
        engine: BaseEngine,
        workload: Workload,
        options: ExperimentOptions,
        records: RequestRecords | None = None,
    ) -> None:
        self._engine, self._options, self._records = engine, options, records
        self._service = ClientService()
        watch = EngineWatch(engine.engines, self._service, host_time=options.host_time)
        self._watch = watch
        self._workload = workload = ObservedWorkload(workload, engine.spec.vocab_size)
        self._finished_requests = FinishedRequests()
        self._checksum = self._served_checksum = 0
        self._clients: dict[str, int] = {}  # their numbers
        self._names: dict[int, str] = {}  # by number, for records
        self._live: dict[str, tuple[int, int]] = {}  # by id: number of the client, samples left
        self._handed_over = engine.clock.now()
        self._lag = 0.0
        self._started = engine.clock.now()
        with watch.watching():
            for step in drive(engine, workload, self._accept):
                for output in step.finished:
                    self._take_output(output)
                self._handed_over = engine.clock.now()
        self._finished = engine.clock.now()

    def _accept(self, request: Request, now: float) -> None:
        """Lateness that a step in progress does not explain is the client's own."""
        assert request.arrival is not None
        self._lag = max(self._lag, now - max(request.arrival, self._handed_over))
        self._service.add_request(request)
        client = self._clients.setdefault(request.client, len(self._clients))
        self._live[request.id] = client, request.sampling.n
        if self._records is not None:
            self._names[client] = request.client

    def _take_output(self, output: RequestOutput) -> None:
        """Keep of a request what is needed: a million of them must fit into memory."""
        client, num_left = self._live[output.id]
        self._finished_requests.add_output(output, client)
        if self._records is not None:
            self._records.add(output, self._names[client])
        if output.finish_reason.is_served:  # a sum, since samples share their request's id
            self._served_checksum += zlib.crc32(output.id.encode())
        if output.finish_reason.is_refused:
            self._service.finished(output)  # the engine never had it
            return
        self._checksum ^= checksum([output])
        if num_left > 1:
            self._live[output.id] = client, num_left - 1
        else:
            del self._live[output.id]

    def result(self) -> RunResult:
        every = self._finished_requests.table()
        done = every.where(every["is_refused"] == 0)
        served = every.where(every["is_served"] == 1)
        start, end = self._window(every["arrival"])
        came = every.where(_within(every["arrival"], start, end))
        inside = served.where(_within(served["arrival"], start, end))
        measured = self._measure(served, came, inside, start, end)
        backlog = Backlog(done, start, end)
        e2e = float(np.nanmean(measured.latencies["e2e"])) if len(inside) else 0.0
        return RunResult(
            values={name: measured.value(name) for name in self._options.all_metrics},
            num_requests=len(every),
            num_refused=len(every) - len(done),
            num_failed=len(done) - len(served),
            num_measured=len(inside),
            num_output_tokens=done.total("num_tokens"),
            num_steps=self._watch.num_steps,
            seconds=self._finished - self._started,
            checksum=self._checksum,
            served_checksum=self._served_checksum,
            traffic=self._workload.traffic(),
            overloaded=backlog.is_overloaded,
            growth=backlog.growth,
            memory=_memory(measured, inside),
            host_s=self._watch.host_seconds,
            fewest_available=self._watch.fewest_available,
            num_by_client=dict(Counter(measured.clients)),
            guards={name: measured.value(name) for name in guards(self._clients)},
            lag_s=self._lag,
            lagging=self._lag > LAG_LIMIT * e2e,
            capacity=self._capacity(done),
            notes=self._notes(done),
            within=self._intervals(measured, inside),
            spreads=spreads(measured.latencies),
            over_time=over_time(done, self._started, self._finished),
        )

    def _window(self, arrivals: FloatArray) -> tuple[float, float]:
        """The measured part: arrivals less warm-up and drain."""
        if not len(arrivals):
            return self._started, self._finished
        first, span = float(arrivals.min()), float(np.ptp(arrivals))
        if span == 0:
            return self._started, self._finished
        return first + self._options.warm_up * span, first + (1 - self._options.drain) * span

    def _measure(
        self,
        served: FinishedTable,
        came: FinishedTable,
        inside: FinishedTable,
        start: float,
        end: float,
    ) -> RunMeasurement:
        """Of `inside`, requests that were served of those that `came` in the measured part."""
        seconds = max(end - start, 1e-12)
        names = ("arrival", "scheduled", "first_token", "finished", "num_tokens")
        found = latencies(*(inside[name] for name in names))
        gaps, weights = self._watch.gaps(start, end)
        good = self._options.slo.met_by(found)
        ended = _within(served["finished"], start, end)
        clients = list(self._clients)
        num, service = max(len(inside), 1), self._service
        whole = {
            "throughput.tokens": self._watch.num_tokens(start, end) / seconds,
            "throughput.requests": int(ended.sum()) / seconds,
            "goodput.rate": float(good.sum()) / seconds,
            "goodput.share": float(good.sum()) / len(came) if len(came) else float("nan"),
            "preemptions": inside.total("num_preemptions") / num,
            "recomputed_tokens": inside.total("num_recomputed_tokens") / num,
            "cache.hit_rate": inside.total("num_cached_tokens")
            / max(inside.total("num_prompt_tokens"), 1),
            "service.gap": service.max_gap,
            "service.jain": jain(service.total),
        }
        return RunMeasurement(
            latencies=found,
            clients=[clients[int(number)] for number in inside["client"].tolist()],
            itl=gaps,
            itl_weights=weights,
            whole=whole,
            shares=service.shares(start, end),
        )

    def _intervals(
        self, measured: RunMeasurement, inside: FinishedTable
    ) -> dict[str, tuple[float, float]]:
        if self._options.repeats >= MIN_RUNS:
            return {}
        found: dict[str, tuple[float, float]] = {}
        for name in measured.latencies:
            values = _by_arrival(measured, inside, name)
            interval = within_run_interval(values, alpha=self._options.alpha)
            if not math.isnan(interval[0]):
                found[f"{name}.mean"] = interval
        return found

    def _capacity(self, done: FinishedTable) -> float:
        """Requests' worth of tokens per second until the last request was admitted.

        Counted in tokens, so that a policy that serves short requests first gains nothing.
        """
        ends = done["scheduled"][~np.isnan(done["scheduled"])]
        seconds = float(ends.max(initial=self._started)) - self._started
        if seconds <= 0:
            seconds = self._finished - self._started
        until = self._started + seconds
        total = done.total("num_tokens")
        if not total or seconds <= 0:
            return float("nan")
        return len(done) * self._watch.num_tokens(self._started, until) / total / seconds

    def _notes(self, done: FinishedTable) -> tuple[str, ...]:
        notes, finished = list(self._workload.notes), self._finished_requests
        if missing := self._workload.missing:
            notes.append(
                f"the workload promised {self._workload.num_requests} requests, and {missing} of "
                "them did not come"
            )
        if failed := finished.by_reason[FinishReason.ERROR]:
            notes.append(f"{failed} requests failed: {finished.errors.get(FinishReason.ERROR)}")
        hits = done.total("num_cached_tokens")
        if hits and not self._workload.shares_prefixes:
            notes.append(
                f"{hits} prompt tokens were found in the prefix cache though no two prompts of "
                "this traffic begin alike: the cache was not empty at the start"
            )
        if refused := finished.by_reason[FinishReason.REFUSED]:
            notes.append(
                f"{refused} requests were refused: {finished.errors[FinishReason.REFUSED]}"
            )
        return tuple(notes)


def guards(clients: Iterable[str]) -> tuple[str, ...]:
    """Metrics that show who pays for a better primary metric: tails, and every client's mean."""
    names = list(clients)
    by_client = [f"e2e.mean@{name}" for name in names] if 1 < len(names) <= MAX_CLIENTS else []
    return (*GUARDS, *by_client)


def _by_arrival(measured: RunMeasurement, inside: FinishedTable, name: str) -> FloatArray:
    """A latency of each request that has it, in the order in which they came."""
    values = measured.latencies[name][np.argsort(inside["arrival"], kind="stable")]
    return values[~np.isnan(values)]


def _memory(measured: RunMeasurement, inside: FinishedTable) -> int:
    values = _by_arrival(measured, inside, "e2e")
    return autocorrelation_length(values) if len(values) else 0


def _within(times: FloatArray, start: float, end: float) -> Any:
    """bool[n]: whether each time is in [start, end]."""
    return (times >= start) & (times <= end)


def checksum(outputs: list[RequestOutput]) -> int:
    """Depends on every request's token ids, not on the order in which they ended."""
    total = 0
    for output in outputs:
        total ^= zlib.crc32(output.token_ids.tobytes(), zlib.crc32(output.id.encode()))
    return total
