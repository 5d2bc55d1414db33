"""Requests that are given: `replay` of a trace file, and `fixed`, a list in the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.errors import ConfigError
from nanofw.plugins import Options
from nanofw.workloads.arrivals import ArrivalProcess
from nanofw.workloads.mix import ARRIVALS, cut_notes, generator
from nanofw.workloads.prompts import key_of, tokens_by_key
from nanofw.workloads.trace import TraceRow, hashes_problem, read_trace


class ReplayOptions(Options):
    """`workload: {name: replay, ...}`."""

    file: Path
    """The trace."""
    format: Literal["auto", "nanofw", "azure", "mooncake", "bailian", "burstgpt"] = "auto"
    """How the file is written; auto: by its first line."""
    num_requests: PositiveInt | None = None
    """Length of the part that is replayed; null: all of it."""
    part: Literal["first", "random"] = "first"
    """Which part of the trace: its first requests, or a random block of the same length. Blocks do
    not overlap. Consecutive seeds take different blocks, in a random order, until all have been
    used."""
    arrivals: ArrivalProcess | None = None
    """When requests come: `{process: poisson, rate: 5.0}`, gamma or on_off; null: as in the
    trace."""


class FixedOptions(Options):
    """`workload: {name: fixed, requests: [{prompt_tokens: 8, output_tokens: 4}, ...]}`."""

    requests: Annotated[tuple[TraceRow, ...], Field(min_length=1)]
    """Each with `arrival`, `prompt_tokens` and `output_tokens`, as a line of a trace."""
    prefix_block_tokens: PositiveInt = 16
    """Tokens that each of a request's `prefix_hashes` stands for."""


class TraceWorkload(Workload):
    """Requests whose arrivals and lengths are given; their tokens come by rule."""

    def __init__(self, rows: Sequence[TraceRow], block: int, config: WorkloadConfig) -> None:
        self._rows, self._block, self._config = rows, block, config
        self._origin = rows[0].arrival
        prompts = np.array([row.prompt_tokens for row in rows], np.int64)
        outputs = np.array([row.output_tokens for row in rows], np.int64)
        self.notes: tuple[str, ...] = cut_notes(prompts, prompts + outputs, config.max_model_len)
        self.shares_prefixes: bool = any(row.prefix_hashes for row in rows)

    @property
    def num_requests(self) -> int:
        return len(self._rows)

    @property
    def rate(self) -> float | None:
        """Requests per second between the first and the last; None when all come at once."""
        span = self._rows[-1].arrival - self._origin
        return (len(self._rows) - 1) / span if span > 0 else None

    def initial(self) -> Iterator[Request]:
        for i, row in enumerate(self._rows):
            yield self._make(i, row)

    def _make(self, i: int, row: TraceRow) -> Request:
        config = self._config
        tokens = self._prompt(i, row)
        output = max(1, min(row.output_tokens, config.max_model_len - len(tokens)))
        seed = key_of(config.seed, i, 1) if row.seed is None else row.seed
        return Request(
            id=str(i),
            prompt_token_ids=tokens,
            sampling=replace(config.sampling, max_tokens=output, seed=seed, ignore_eos=True),
            arrival=self._at(row.arrival),
            client=row.client,
            priority=row.priority,
            deadline=None if row.deadline is None else self._at(row.deadline),
            expected_output_tokens=row.expected_output_tokens,
        )

    def _at(self, seconds: float) -> float:
        return self._config.start + self._config.time_scale * (seconds - self._origin)

    def _prompt(self, i: int, row: TraceRow) -> IntArray:
        vocab = self._config.vocab_size
        room = min(row.prompt_tokens, self._config.max_model_len - 1)
        parts: list[IntArray] = []
        for key in row.prefix_hashes[: -(-room // self._block)]:
            parts.append(tokens_by_key(key_of(key, 3), min(self._block, room), vocab))
            room -= len(parts[-1])
        parts.append(tokens_by_key(key_of(self._config.seed, i, 2), room, vocab))
        return np.concatenate(parts)


class Replay(TraceWorkload):
    """A trace, or a part of it."""

    def __init__(self, options: ReplayOptions, config: WorkloadConfig) -> None:
        trace = read_trace(options.file, options.format)
        num = options.num_requests or len(trace.rows)
        if num > len(trace.rows):
            raise ConfigError(
                f"{num:,} requests are asked for, and {options.file} has {len(trace.rows):,}",
                key="input.workload.num_requests",
            )
        first = 0
        if options.part == "random":
            first = num * _block(len(trace.rows) // num, config.seed)
        rows = trace.rows[first : first + num]
        self._process = options.arrivals
        if options.arrivals is not None:
            gaps = options.arrivals.gaps(generator(config.seed, 0, ARRIVALS), num)
            rows = [_moved(*pair) for pair in zip(rows, np.cumsum(gaps).tolist(), strict=True)]
        super().__init__(rows, trace.prefix_block_tokens, config)
        if options.arrivals is not None:
            self._origin = 0.0
        if trace.skipped:
            self.notes: tuple[str, ...] = (
                *self.notes,
                f"{trace.skipped} requests without any output were left out",
            )

    @property
    def rate(self) -> float | None:
        return super().rate if self._process is None else self._process.rate


def _block(num_blocks: int, seed: int) -> int:
    """Number of the block that a seed takes: `num_blocks` seeds in a row take each once."""
    return int(np.random.default_rng(num_blocks).permutation(num_blocks)[seed % num_blocks])


def _moved(row: TraceRow, arrival: float) -> TraceRow:
    """The row at another time, its deadline as far from it."""
    deadline = None if row.deadline is None else arrival + (row.deadline - row.arrival)
    return row.model_copy(update={"arrival": arrival, "deadline": deadline})


class FixedList(TraceWorkload):
    """A list of requests."""

    def __init__(self, options: FixedOptions, config: WorkloadConfig) -> None:
        for number, row in enumerate(options.requests):
            if problem := hashes_problem(row, options.prefix_block_tokens):
                raise ConfigError(problem, key=f"input.workload.requests[{number}].prefix_hashes")
        rows = sorted(options.requests, key=lambda row: row.arrival)
        super().__init__(rows, options.prefix_block_tokens, config)
