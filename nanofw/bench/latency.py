"""How long a decode step takes by batch size, and the first token by prompt length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from nanofw.assembly import Selection, build
from nanofw.bench.batches import Batches, FreshPrompts, seconds_of, step_seconds
from nanofw.bench.bounds import check_blocks, check_length, check_real, check_rows
from nanofw.config.schema import Section
from nanofw.errors import ConfigError
from nanofw.measure.progress import ProgressReport, silent

BATCH_SIZES = (1, 8, 32, 128, 256)
FIRST_TOKENS = (128, 512, 2048, 8192)
SMALL_BATCH = 8
TOKENS_OF_SMALL, TOKENS_OF_LARGE = 385, 129
"""Small batches need more steps until the noise of the first token no longer shows."""


class LatencyOptions(Section):
    """Settings of `nanofw bench latency`."""

    batch_sizes: tuple[PositiveInt, ...] | None = None
    """How many requests decode at once; each number is measured. null: 1, 8, 32, 128 and 256, if
    `engine.max_num_seqs` allows them. An empty list: decode steps are not measured."""
    prompt_tokens: PositiveInt = 128
    """Prompt length of each of these requests."""
    output_tokens: Annotated[int, Field(ge=2)] | None = None
    """Output tokens of each of these requests; null: 385 tokens for up to 8 requests, 129 for more;
    fewer if the model allows only fewer."""
    first_token: tuple[PositiveInt, ...] | None = None
    """Prompt lengths whose first token is timed; null: 128, 512, 2048 and 8192, as far as they
    fit; []: none."""
    repeats: PositiveInt = 3
    """Number of measurements."""
    warm_up: NonNegativeInt = 1
    """How many measurements are made first and not counted."""
    seed: NonNegativeInt = 0
    """Seed of the prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One measurement, repeated.

    Attributes:
        kind: of a decode step, or of the time to a first token.
        seconds: of each repeat.
    """

    kind: Literal["decode", "first_token"]
    batch_size: int
    prompt_tokens: int
    output_tokens: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def tokens_per_s(self) -> float:
        """Of a decode step: sampled tokens; of a first token: tokens of the prompt."""
        num = self.batch_size if self.kind == "decode" else self.prompt_tokens
        return num / self.median


@dataclass(frozen=True, slots=True)
class _Job:
    """What is measured."""

    kind: Literal["decode", "first_token"]
    batch_size: int
    prompt_tokens: int
    output_tokens: int

    @property
    def text(self) -> str:
        if self.kind == "decode":
            return f"decode, batch of {self.batch_size}"
        return f"first token after {self.prompt_tokens}"


def latencies(
    selection: Selection,
    options: LatencyOptions,
    report: ProgressReport = silent,
) -> Iterator[Timing]:
    """Measure on a fresh engine, each result when it is there.

    Raises:
        ConfigError: before the engine is built: something cannot be measured with this
            configuration; after it: the KV pool is too small.
    """
    jobs = _jobs(selection, options)
    with build(selection) as engine:
        capacity = engine.executor.capacity()
        for job in jobs:
            longest = job.prompt_tokens + job.output_tokens
            key = "batch_sizes" if job.kind == "decode" else "first_token"
            check_blocks(capacity, job.batch_size, longest, f"bench.{key}")
        generate = Batches(engine, selection.loaded.config.sampling)
        prompts = FreshPrompts(selection.spec.vocab_size, options.seed)
        repeats = options.warm_up + options.repeats
        for number, job in enumerate(jobs):
            seconds: list[float] = []
            for repeat in range(repeats):
                report(number * repeats + repeat, len(jobs) * repeats, job.text)
                seconds.append(_measure(generate, prompts, job))
            yield Timing(
                kind=job.kind,
                batch_size=job.batch_size,
                prompt_tokens=job.prompt_tokens,
                output_tokens=job.output_tokens,
                seconds=tuple(seconds[options.warm_up :]),
            )
        report(len(jobs) * repeats, len(jobs) * repeats, "")


def _measure(generate: Batches, prompts: FreshPrompts, job: _Job) -> float:
    if job.kind == "first_token":
        return seconds_of(partial(generate, prompts.make(1, job.prompt_tokens), 1))
    return step_seconds(generate, prompts, job.batch_size, job.prompt_tokens, job.output_tokens)


def _jobs(selection: Selection, options: LatencyOptions) -> list[_Job]:
    check_real(selection)
    longest, prompt = selection.max_model_len, options.prompt_tokens
    sizes, jobs = options.batch_sizes, list[_Job]()
    if sizes is None:
        most = selection.loaded.config.engine.max_num_seqs
        sizes = [size for size in BATCH_SIZES if size <= most]
    for size in sizes:
        check_rows(selection, size, "bench.batch_sizes")
        wanted = TOKENS_OF_SMALL if size <= SMALL_BATCH else TOKENS_OF_LARGE
        output = options.output_tokens or max(2, min(wanted, longest - prompt))
        check_length(selection, prompt, output, "bench.prompt_tokens")
        jobs.append(_Job("decode", size, prompt, output))
    lengths = options.first_token
    if lengths is None:
        lengths = [length for length in FIRST_TOKENS if length < longest]
    for length in lengths:
        check_length(selection, length, 1, "bench.first_token")
        jobs.append(_Job("first_token", 1, length, 1))
    if not jobs:
        raise ConfigError("there is nothing to measure", key="bench.batch_sizes")
    return jobs
