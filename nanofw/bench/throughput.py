"""Tokens per second on a workload: a cold pass, then steady ones in the same process.

Every pass serves the same requests, and the prefix cache is emptied before each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from nanofw.assembly import Selection, build, build_workload
from nanofw.bench.batches import graph_steps
from nanofw.bench.bounds import check_real
from nanofw.config.schema import Section
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError
from nanofw.measure.drive import drive
from nanofw.measure.latencies import (
    STATISTICS,
    request_latencies,
    weighted_statistic,
)
from nanofw.measure.progress import ProgressReport, silent
from nanofw.measure.token_times import TokenTimes
from nanofw.workloads.lengths import Lengths, Uniform
from nanofw.workloads.prompts import key_of
from nanofw.workloads.replay import FixedList, FixedOptions
from nanofw.workloads.trace import TraceRow

Traffic = Literal["random", "workload", "prompts"]


class ThroughputOptions(Section):
    """Settings of `nanofw bench throughput`."""

    traffic: Literal["auto", "random", "own"] = "auto"
    """random: random prompts of random lengths; own: the requests of the configuration's `input`;
    auto: own if `input` is a workload or a file, otherwise random."""
    num_requests: PositiveInt = 256
    """Number of requests of random traffic."""
    prompt_tokens: Lengths = Uniform(distribution="uniform", low=100, high=1024)
    """Lengths of the prompts of random traffic, written as those of a workload; a prompt that does
    not fit the model is cut, with a note."""
    output_tokens: Lengths = Uniform(distribution="uniform", low=100, high=1024)
    """Lengths of the outputs of random traffic; each request runs to its full length."""
    at_once: bool = True
    """true: all requests come at the beginning. false: requests come at the times of the workload;
    then TTFT is the time that a client would see."""
    passes: PositiveInt = 3
    """How often all requests are served; the first pass is cold."""
    seed: NonNegativeInt = 0
    """Seed of lengths, tokens and sampling."""

    def kind(self, selection: Selection) -> Traffic:
        """Which traffic it is. Raises ConfigError where the configuration does not say."""
        given = selection.loaded.config.input
        if given.workload is not None and self.traffic != "random":
            return "workload"
        if self.traffic == "random" or (self.traffic == "auto" and given.file is None):
            return "random"
        if given.file is None and given.prompts is None:
            raise ConfigError(
                "the configuration has no requests of its own: set input.workload, input.file or "
                "input.prompts, or bench.traffic=random",
                key="bench.traffic",
            )
        return "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPass:
    """What one pass came to.

    Attributes:
        number: from 1; the first one is cold.
        num_failed: requests that were refused or ended with an error.
        seconds: from handing over the first request to the end of the last.
        latencies: seconds by quantity (queue, ttft, tpot, e2e, itl) and statistic; a quantity
            that no request has is absent.
        graph_steps: steps that were replayed from graphs, and the others by reason.
        notes: sentences on the traffic and on what failed.
    """

    number: int
    num_requests: int
    num_failed: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    seconds: float
    latencies: Mapping[str, Mapping[str, float]]
    graph_steps: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        """Prompts and outputs; prompt tokens that the prefix cache had are not computed."""
        computed = self.num_prompt_tokens - self.num_cached_tokens
        return (computed + self.num_output_tokens) / self.seconds

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the prefix cache had."""
        return self.num_cached_tokens / max(1, self.num_prompt_tokens)

    @property
    def requests_per_s(self) -> float:
        return (self.num_requests - self.num_failed) / self.seconds


class Prepared(Workload):
    """Requests that are made before the clock runs.

    Args:
        requests: arrivals and deadlines count from `start`.
        source: the workload that they are of, if others follow them.

    Attributes:
        start: when the first of them comes, on the engine's clock; set before they are read.
    """

    def __init__(self, requests: Sequence[Request], source: Workload | None = None) -> None:
        self._requests, self._source = requests, source
        self.start: float = 0.0
        if source is not None:
            self.notes: tuple[str, ...] = source.notes
            self.shares_prefixes: bool = source.shares_prefixes

    @property
    def num_requests(self) -> int:
        return len(self._requests) if self._source is None else self._source.num_requests

    def initial(self) -> Iterator[Request]:
        for request in self._requests:
            deadline = request.deadline
            yield replace(
                request,
                arrival=self.start + (request.arrival or 0.0),
                deadline=None if deadline is None else self.start + deadline,
            )

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        return () if self._source is None else self._source.follow(output)


def passes(
    selection: Selection,
    options: ThroughputOptions,
    requests: Sequence[Request] = (),
    report: ProgressReport = silent,
) -> Iterator[ThroughputPass]:
    """Serve the traffic several times on one engine, each result when it is there.

    Args:
        requests: of traffic that is `prompts`; their deadlines count from the arrival.

    Raises:
        ConfigError: a simulated run, or there is no traffic.
    """
    check_real(selection)
    kind = options.kind(selection)
    with build(selection) as engine:
        for number in range(1, options.passes + 1):
            engine.scheduler.allocator.reset()
            workload = make_workload(selection, options, kind, requests)

            def note(done: int, number: int = number, total: int = workload.num_requests) -> None:
                report(total * (number - 1) + done, total * options.passes, f"pass {number}")

            yield run_pass(engine, workload, number, note)


def make_workload(
    selection: Selection,
    options: ThroughputOptions,
    kind: Traffic,
    requests: Sequence[Request],
) -> Prepared:
    """The traffic of one pass."""
    if kind == "prompts":
        return Prepared([_seeded(request, options.seed, i) for i, request in enumerate(requests)])
    if kind == "random":
        source = random_lengths(selection, options)
    else:
        scale = 0.0 if options.at_once else 1.0
        source = build_workload(selection, seed=options.seed, time_scale=scale)
    return Prepared(list(source.initial()), source)


def random_lengths(selection: Selection, options: ThroughputOptions) -> Workload:
    """Requests of random lengths that come together."""
    rng = np.random.default_rng([options.seed, 5])
    prompts = options.prompt_tokens.sample(rng, options.num_requests).tolist()
    outputs = options.output_tokens.sample(rng, options.num_requests).tolist()
    rows = tuple(
        TraceRow(prompt_tokens=prompt, output_tokens=output)
        for prompt, output in zip(prompts, outputs, strict=True)
    )
    config = WorkloadConfig(
        vocab_size=selection.spec.vocab_size,
        max_model_len=selection.max_model_len,
        seed=options.seed,
        sampling=selection.loaded.config.sampling,
    )
    return FixedList(FixedOptions(requests=rows), config)


def run_pass(
    engine: Engine, workload: Prepared, number: int, note: Callable[[int], None] = lambda _: None
) -> ThroughputPass:
    """Run a workload through an engine that is idle, and measure it."""
    before, graphs = engine.stats(), graph_steps(engine)
    outputs, times, seconds = _serve(engine, workload, note)
    failed = [
        output
        for output in outputs
        if output.finish_reason.is_refused or output.finish_reason is FinishReason.ERROR
    ]
    served = [output for output in outputs if not output.finish_reason.is_refused]
    num_cached = sum(o.num_cached_tokens for o in served)
    return ThroughputPass(
        number=number,
        num_requests=len({o.id for o in outputs}),
        num_failed=len({o.id for o in failed}),
        num_prompt_tokens=sum(o.num_prompt_tokens for o in served if o.sample_index == 0),
        num_cached_tokens=num_cached,
        num_output_tokens=sum(len(o.token_ids) for o in served),
        num_steps=times.num_steps,
        num_preemptions=engine.stats()["num_preemptions"] - before["num_preemptions"],
        seconds=seconds,
        latencies=_latencies(served, times, workload.start),
        graph_steps=graph_steps(engine, graphs),
        notes=(*workload.notes, *_notes(workload, failed, num_cached)),
    )


def _serve(
    engine: Engine, workload: Prepared, note: Callable[[int], None]
) -> tuple[list[RequestOutput], TokenTimes, float]:
    """All outputs, the times of their tokens, and the seconds until the last one."""
    times = TokenTimes()
    outputs: list[RequestOutput] = []
    note(0)
    begin, workload.start = time.perf_counter(), engine.clock.now()
    with engine.observed_by(times):
        for step in drive(engine, workload):
            if step.finished:
                outputs += step.finished
                note(len(outputs))
        return outputs, times, time.perf_counter() - begin


def _notes(workload: Workload, failed: Sequence[RequestOutput], num_cached: int) -> list[str]:
    notes: list[str] = []
    if failed:
        notes.append(f"{len(failed)} requests failed, the first with: {failed[0].error}")
    if num_cached and not workload.shares_prefixes:
        notes.append(
            f"{num_cached} prompt tokens were found in the prefix cache though no two prompts "
            "begin alike: the cache was not empty, and figures are too good"
        )
    return notes


def _latencies(
    served: Sequence[RequestOutput], times: TokenTimes, start: float
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, values in request_latencies(served).items():
        defined = values[~np.isnan(values)]
        if len(defined):
            found[name] = {key: function(defined) for key, function in STATISTICS.items()}
    gaps, weights = times.gaps(start, np.inf)
    if len(gaps):
        found["itl"] = {key: weighted_statistic(key, gaps, weights) for key in STATISTICS}
    return found


def _seeded(request: Request, seed: int, index: int) -> Request:
    """The request with a seed, so that it samples the same tokens in every pass."""
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=key_of(seed, index, 6)))
