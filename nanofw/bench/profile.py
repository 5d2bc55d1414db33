"""Where the time of a step goes: kernels or operators, host phases, an idle device.

Each phase is run three times over: timed, recorded by PyTorch's profiler, timed again. Times are
those of the timed passes, which no profiler slows down; contexts of decoding requests grow, and
the mean of the two passes stands for the contexts of the recorded one. Kernels and operators
are those of the recorded pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from nanofw.assembly import Selection, build
from nanofw.bench import least_work
from nanofw.bench.batches import Batches, FreshPrompts, graph_steps, seconds_of
from nanofw.bench.bounds import check_blocks, check_length, check_real, check_rows
from nanofw.bench.least_work import LeastWork
from nanofw.bench.step_roofline import CardRates, RooflinePart, card_rates, step_parts
from nanofw.config.schema import Section
from nanofw.contracts.requests import FinishReason
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError, ExecutorError
from nanofw.measure.host_phases import PhaseTimes, spans
from nanofw.measure.progress import ProgressReport, silent
from nanofw.measure.step_traces import (
    KERNEL,
    StepTrace,
    Work,
    busy_seconds,
    device_work,
    operator_work,
    record,
)

LONGEST_PREFILL, LARGEST_DECODE = 1024, 256
PASSES = 3


class ProfileOptions(Section):
    """Settings of `nanofw profile`."""

    decode: tuple[PositiveInt, ...] | None = None
    """Batch sizes of decode steps; null: 1, and the smaller of `engine.max_num_seqs` and 256;
    []: none."""
    prefill: tuple[PositiveInt, ...] | None = None
    """Lengths of prompts; each prompt is computed in one step. null: 1024, or fewer if a step
    cannot hold that. An empty list: prefill is not profiled."""
    context_tokens: PositiveInt = 128
    """Prompt length of the requests that decode."""
    steps: PositiveInt = 20
    """Number of measured steps in each pass."""
    warm_up: NonNegativeInt = 5
    """How many steps run before the measured steps and are not counted."""
    seed: NonNegativeInt = 0
    """Seed of the prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of step.

    Attributes:
        num_tokens: of the prompts of a prefill; of each context at the beginning of a decode.
        step_seconds: mean of the timed steps; `timed` has the mean of each of the two passes.
        recorded_step_seconds: the same under the profiler.
        host: seconds a step by phase (`plan`, `submit`, `submit.forward`, ...), of `step`.
        least: what the step cannot do without, at the contexts in the middle of the passes.
        work: kernels and copies of a step on an accelerator, operators of the host on a CPU.
        busy_seconds: a step, with something on the accelerator; None on a CPU.
        graph_steps: steps of the recorded pass that were replayed, and the others by reason,
            where the executor tells.
        card: what the accelerator does at best; None on a CPU, or when it was not measured.
    """

    kind: Literal["prefill", "decode"]
    batch_size: int
    num_tokens: int
    num_layers: int
    num_steps: int
    step_seconds: float
    timed: tuple[float, float]
    recorded_step_seconds: float
    host: Mapping[str, float]
    least: LeastWork
    work: tuple[Work, ...]
    busy_seconds: float | None
    graph_steps: Mapping[str, int]
    card: CardRates | None = None

    @property
    def parts(self) -> tuple[RooflinePart, ...]:
        """Products, attention and the rest against what they must do; empty on a CPU."""
        return () if self.busy_seconds is None else step_parts(self.work, self.least)

    @property
    def idle(self) -> float | None:
        """Share of a step in which the accelerator has nothing to do."""
        if self.busy_seconds is None:
            return None
        return max(0.0, 1 - self.busy_seconds / self.step_seconds)

    @property
    def num_kernels(self) -> float | None:
        """Kernels of a step, copies not counted; None on a CPU."""
        if self.busy_seconds is None:
            return None
        return sum(item.count for item in self.work if item.category == KERNEL)

    @property
    def kernels_per_layer(self) -> float | None:
        """Of the kernels that come at least once every two layers; None on a CPU."""
        if self.busy_seconds is None:
            return None
        kernels = [item.count for item in self.work if item.category == KERNEL]
        return sum(count for count in kernels if 2 * count >= self.num_layers) / self.num_layers

    @property
    def text(self) -> str:
        """`decode of 8 requests`."""
        if self.kind == "prefill":
            return f"prefill of {self.num_tokens} tokens"
        return f"decode of {self.batch_size} request{'s' if self.batch_size > 1 else ''}"


def profiles(
    selection: Selection, options: ProfileOptions, report: ProgressReport = silent
) -> Iterator[tuple[Profile, StepTrace]]:
    """Profile every kind of step on a fresh engine, each result with its trace when it is there.

    Raises:
        ConfigError: something cannot be profiled with this configuration.
    """
    decodes, prefills = _phases(selection, options)
    on_cuda, dtype = selection.device.startswith("cuda"), selection.spec.dtype
    card = card_rates(selection.device, dtype) if on_cuda else None
    with build(selection) as engine:
        capacity = engine.executor.capacity()
        for size in decodes:
            length = options.context_tokens + _decode_tokens(selection, options, size)
            check_blocks(capacity, size, length, "profile.decode")
        profiler = _Profiler(engine, selection, options, card)
        total, done = len(decodes) + len(prefills), 0
        for length in prefills:
            report(done, total, f"prefill of {length} tokens")
            yield profiler.prefill(length)
            done += 1
        for size in decodes:
            report(done, total, f"decode, batch of {size}")
            yield profiler.decode(size)
            done += 1
        report(total, total, "")


class _Profiler:
    """Runs steps of one engine."""

    def __init__(
        self,
        engine: Engine,
        selection: Selection,
        options: ProfileOptions,
        card: CardRates | None,
    ) -> None:
        self._engine, self._options, self._card = engine, options, card
        self._batches = Batches(engine, selection.loaded.config.sampling)
        self._prompts = FreshPrompts(selection.spec.vocab_size, options.seed)
        self._spec = selection.spec
        self._num_layers = selection.spec.num_layers
        self._device = selection.device
        self._on_cuda = selection.device.startswith("cuda")
        self._longest = selection.max_model_len

    def prefill(self, num_tokens: int) -> tuple[Profile, StepTrace]:
        """Steps that compute one prompt each."""

        def run(count: int) -> None:
            for _ in range(count):
                self._batches(self._prompts.make(1, num_tokens), 1)

        run(max(1, self._options.warm_up))
        least = least_work.of_prefill(self._spec, num_tokens)
        return self._profile("prefill", 1, num_tokens, least, run)

    def decode(self, batch_size: int) -> tuple[Profile, StepTrace]:
        """Steps in which `batch_size` requests make a token each."""
        engine, context = self._engine, self._options.context_tokens
        prompts = self._prompts.make(batch_size, context)
        ids = [self._batches.add_request(prompt, self._longest - context) for prompt in prompts]
        report = None
        while report is None or report.num_prefill_tokens or report.num_decode_tokens < batch_size:
            output = engine.step()
            report = output.report or report
            self._check([end.error for end in output.finished])

        def run(count: int) -> None:
            for _ in range(count):
                engine.step()

        run(self._options.warm_up)
        middle = context + self._options.warm_up + PASSES * self._options.steps / 2
        least = least_work.of_decode(self._spec, batch_size, middle)
        made = self._profile("decode", batch_size, context, least, run)
        ended = [engine.abort_request(request_id) for request_id in ids]
        while engine.has_unfinished:
            output = engine.step()
            self._check(
                [end.error for end in output.finished if end.finish_reason is FinishReason.ERROR]
            )
        self._check([] if all(ended) else ["it ended too early"])
        return made

    def _profile(
        self,
        kind: Literal["prefill", "decode"],
        batch_size: int,
        num_tokens: int,
        least: LeastWork,
        run: Any,
    ) -> tuple[Profile, StepTrace]:
        steps, engine, times = self._options.steps, self._engine, PhaseTimes()
        timed: list[float] = []
        with times.watch(engine):
            timed.append(seconds_of(lambda: run(steps)) / steps)
        before = graph_steps(engine)
        with spans(engine):
            recorded: list[float] = []
            trace = record(lambda: recorded.append(seconds_of(lambda: run(steps))), self._device)
        by_graphs = graph_steps(engine, before)
        with times.watch(engine):
            timed.append(seconds_of(lambda: run(steps)) / steps)
        work = device_work(trace, steps) if self._on_cuda else operator_work(trace, steps)
        profile = Profile(
            kind=kind,
            batch_size=batch_size,
            num_tokens=num_tokens,
            num_layers=self._num_layers,
            num_steps=steps,
            step_seconds=sum(timed) / 2,
            timed=(timed[0], timed[1]),
            recorded_step_seconds=recorded[0] / steps,
            host={name: value / (2 * steps) for name, value in times.seconds.items()},
            least=least,
            work=tuple(work),
            busy_seconds=busy_seconds(trace) / steps if self._on_cuda else None,
            graph_steps=by_graphs,
            card=self._card,
        )
        return profile, trace

    def _check(self, problems: list[str | None]) -> None:
        if problems:
            reason = problems[0] or "it ended too early"
            raise ExecutorError(f"a request of the profile failed: {reason}")


def _decode_tokens(selection: Selection, options: ProfileOptions, batch_size: int) -> int:
    """Tokens that a decoding request makes: in the passes, and while others are prefilled."""
    budget = selection.loaded.config.engine.max_num_batched_tokens - batch_size
    num_prefills = -(-batch_size * options.context_tokens // max(1, budget))
    return PASSES * options.steps + options.warm_up + num_prefills + 4


def _phases(
    selection: Selection, options: ProfileOptions
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch sizes to decode and lengths to prefill. Raises ConfigError for those that cannot be."""
    check_real(selection)
    engine = selection.loaded.config.engine
    if engine.tensor_parallel_size > 1:
        raise ConfigError(
            "kernels of other processes are not recorded; profile on one rank",
            key="engine.tensor_parallel_size",
        )
    most = min(engine.max_num_batched_tokens, engine.chunk_tokens or engine.max_num_batched_tokens)
    prefills = options.prefill
    if prefills is None:
        prefills = (min(LONGEST_PREFILL, most, selection.max_model_len - 1),)
    for length in prefills:
        check_length(selection, length, 1, "profile.prefill")
        if length > most:
            raise ConfigError(
                f"a prompt of {length} tokens is more than one step computes, {most}; raise "
                "engine.max_num_batched_tokens or engine.chunk_tokens, or profile shorter ones",
                key="profile.prefill",
            )
    decodes = options.decode
    if decodes is None:
        decodes = tuple(sorted({1, min(engine.max_num_seqs, LARGEST_DECODE)}))
    for size in decodes:
        check_rows(selection, size, "profile.decode")
        num_tokens = _decode_tokens(selection, options, size)
        check_length(selection, options.context_tokens, num_tokens, "profile.context_tokens")
    if not decodes and not prefills:
        raise ConfigError("there is nothing to profile", key="profile.decode")
    return decodes, prefills
