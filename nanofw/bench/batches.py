"""Batches of random prompts, run to their end by an engine: what measurements are made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import ExecutorError
from nanofw.workloads.prompts import key_of, tokens_by_key


class Generate(Protocol):
    """Continues each prompt by `num_tokens` tokens and returns when the last one is there."""

    def __call__(self, prompts: list[IntArray], num_tokens: int, /) -> object: ...


class FreshPrompts:
    """Prompts of random tokens that begin differently: nothing is found in a cache.

    The same seed gives the same prompts in the same order.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size, self._seed = vocab_size, seed
        self._num_made = 0

    def make(self, count: int, num_tokens: int) -> list[IntArray]:
        """`count` prompts, each int32[num_tokens]."""
        first = self._num_made
        self._num_made += count
        return [
            tokens_by_key(key_of(self._seed, number, 4), num_tokens, self._vocab_size)
            for number in range(first, self._num_made)
        ]


class Batches:
    """Implements `Generate` with an engine of this package.

    Requests are sampled as the configuration says, and go on to their full length.
    """

    def __init__(self, engine: Engine, sampling: SamplingParams) -> None:
        self._engine, self._num_added = engine, 0
        self._sampling = replace(
            sampling, n=1, stop=(), stop_token_ids=(), ignore_eos=True, min_tokens=0
        )

    def __call__(self, prompts: list[IntArray], num_tokens: int, /) -> None:
        """Raises ExecutorError when a request has not become as long as it should be."""
        engine = self._engine
        for prompt in prompts:
            self.add_request(prompt, num_tokens)
        while engine.has_unfinished:
            for output in engine.step().finished:
                if output.finish_reason is not FinishReason.LENGTH:
                    reason = output.error or output.finish_reason
                    raise ExecutorError(f"a request of the measurement failed: {reason}")
                if len(output.token_ids) != num_tokens:
                    raise ExecutorError(
                        f"a request of the measurement has {len(output.token_ids)} tokens instead "
                        f"of {num_tokens}: the KV pool is too small for it"
                    )

    def add_request(self, prompt: IntArray, num_tokens: int) -> str:
        """Queue one prompt; returns the id of its request."""
        self._num_added += 1
        request_id = f"measured-{self._num_added}"
        sampling = replace(self._sampling, max_tokens=num_tokens)
        self._engine.add_request(Request(id=request_id, prompt_token_ids=prompt, sampling=sampling))
        return request_id


def graph_steps(engine: Engine, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Steps by how they were carried out (replayed, or why not), where the executor tells it.

    Args:
        before: what this gave at an earlier time; then only the steps since.
    """
    now = engine.executor_facts().graph_steps
    earlier = before or {}
    return {name: num - earlier.get(name, 0) for name, num in now.items()
            if before is None or num > earlier.get(name, 0)}  # fmt: skip


def seconds_of(run: Callable[[], object]) -> float:
    """Real seconds of a call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def step_seconds(
    generate: Generate, prompts: FreshPrompts, batch_size: int, prompt_tokens: int, num_tokens: int
) -> float:
    """Seconds of a decode step: (t(num_tokens) - t(1)) / (num_tokens - 1), with fresh prompts.

    Whatever comes before the first token is in both times and falls out.
    """
    few, many = (prompts.make(batch_size, prompt_tokens) for _ in range(2))
    short = seconds_of(lambda: generate(few, 1))
    long = seconds_of(lambda: generate(many, num_tokens))
    return (long - short) / (num_tokens - 1)
