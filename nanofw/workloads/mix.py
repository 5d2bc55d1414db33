"""What the requests of a stream look like, apart from when they come."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from nanofw.contracts.arrays import FloatArray, IntArray, LongArray
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import WorkloadConfig
from nanofw.narrowing import JsonObject
from nanofw.plugins import Options
from nanofw.workloads.lengths import Fixed, Lengths, chances
from nanofw.workloads.prompts import key_of, tokens_by_key

_LARGEST_EXPONENT = 20.0
"""A guess that is wrong by more than e^20 says no more than one that is."""

Count: TypeAlias = Annotated[int, Field(ge=1, le=20_000_000)]
"""Of what a workload keeps numbers of in memory: requests, conversations, groups."""

LENGTHS, CLIENTS, GROUPS, ARRIVALS, NOISE = range(5)
"""Streams of random numbers: one for each purpose, so that an option changes only its own."""


def generator(seed: int, stream: int, purpose: int) -> np.random.Generator:
    """Random numbers of one purpose in one stream of requests."""
    return np.random.default_rng([seed % (1 << 64), stream, purpose])


class PrefixGroups(Options):
    """Prompts of a group begin alike: system prompts, documents, few-shot examples."""

    groups: Count
    """Groups of prompts."""
    length: Lengths
    """Tokens that a group shares; a prompt's own length comes on top."""
    zipf: NonNegativeFloat = 0.0
    """Popularity: group k with weight 1 / k^zipf. 0: all alike."""
    cold: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of requests with a prefix of the same length that no other request has."""


class MixOptions(Options):
    """Lengths, clients and the like."""

    prompt: Lengths = Fixed(tokens=128)
    """Distribution of the tokens of a prompt."""
    output: Lengths = Fixed(tokens=64)
    """Distribution of the tokens that a request generates."""
    prefix: PrefixGroups | None = None
    """Shared beginnings of prompts; null: prompts share no beginning."""
    clients: dict[str, PositiveFloat] = Field(default_factory=lambda: {"": 1.0}, min_length=1)
    """Share of the requests by client."""
    priorities: dict[int, PositiveFloat] = Field(default_factory=lambda: {0: 1.0}, min_length=1)
    """Share of the requests by priority; smaller is more urgent."""
    deadline_s: NonNegativeFloat | None = None
    """Deadline of a request, in seconds after its arrival."""
    deadline_per_token_s: NonNegativeFloat = 0.0
    """Seconds that each token of the output adds to the deadline."""
    guess_noise: NonNegativeFloat | None = None
    """`expected_output_tokens`: the length times exp(normal(0, guess_noise)); 0: exact; null:
    requests have no `expected_output_tokens`. If lengths of outputs are log-normal with `sigma`,
    the rank correlation (Kendall's tau) between guess and length is 2/pi * asin(sigma /
    sqrt(sigma^2 + guess_noise^2))."""


@dataclass(frozen=True, slots=True)
class SampledRequests:
    """What was sampled for n requests.

    Attributes:
        groups: -1: no group; other negative numbers: a cold prefix.
    """

    prompts: LongArray
    outputs: LongArray
    prefixes: LongArray
    groups: LongArray
    clients: LongArray
    priorities: LongArray
    noise: FloatArray


class RequestMix:
    """Makes the requests of one stream."""

    def __init__(self, options: MixOptions, config: WorkloadConfig, stream: int, num: int) -> None:
        self._options, self._config, self._stream = options, config, stream
        self._clients: list[str] = list(options.clients)
        self._priorities: list[int] = list(options.priorities)
        self._sampled = self._sample(num)
        sampling = config.sampling
        values: dict[str, object] = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
        self._sampling = values | {"ignore_eos": True}

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be cut to the model's length."""
        sampled, longest = self._sampled, self._config.max_model_len
        lengths = sampled.prompts + sampled.prefixes
        return cut_notes(lengths, lengths + sampled.outputs, longest)

    @property
    def lengths(self) -> tuple[LongArray, LongArray]:
        """int64[n] tokens of prompts and outputs, each pair cut as `make` cuts it."""
        sampled, longest = self._sampled, self._config.max_model_len
        prompts = np.minimum(sampled.prompts + sampled.prefixes, longest - 1)
        return prompts, np.clip(sampled.outputs, 1, longest - prompts)

    def make(self, i: int, request_id: str, arrival: float) -> Request:
        """Request number `i` of the stream."""
        sampled, options, config = self._sampled, self._options, self._config
        tokens = self.prompt(i)
        room = config.max_model_len - len(tokens)
        output = max(1, min(int(sampled.outputs[i]), room))
        seed = key_of(config.seed, self._stream, i, 1)
        sampling: JsonObject = {**self._sampling, "max_tokens": output, "seed": seed}
        deadline = None
        if options.deadline_s is not None:
            deadline = arrival + options.deadline_s + output * options.deadline_per_token_s
        return Request(
            id=request_id,
            prompt_token_ids=tokens,
            sampling=SamplingParams(**sampling),
            arrival=arrival,
            client=self._clients[int(sampled.clients[i])],
            priority=self._priorities[int(sampled.priorities[i])],
            deadline=deadline,
            expected_output_tokens=self._guess(output, float(sampled.noise[i])),
        )

    def prompt(self, i: int) -> IntArray:
        """Token ids of request `i`: what its group shares, then its own; room for one more."""
        sampled, vocab, seed = self._sampled, self._config.vocab_size, self._config.seed
        room = self._config.max_model_len - 1
        num_shared = min(int(sampled.prefixes[i]), room)
        num_own = min(int(sampled.prompts[i]), room - num_shared)
        own = tokens_by_key(key_of(seed, self._stream, i, 2), num_own, vocab)
        if not num_shared:
            return own
        group = int(sampled.groups[i])
        shared = tokens_by_key(key_of(seed, self._stream, group, 3), num_shared, vocab)
        return np.concatenate((shared, own))

    def _guess(self, output: int, noise: float) -> int | None:
        if self._options.guess_noise is None:
            return None
        factor = math.exp(min(self._options.guess_noise * noise, _LARGEST_EXPONENT))
        return max(1, round(output * factor))

    def _sample(self, num: int) -> SampledRequests:
        options, seed = self._options, self._config.seed
        lengths = generator(seed, self._stream, LENGTHS)
        people = generator(seed, self._stream, CLIENTS)
        prefixes, groups = self._sample_groups(num)
        return SampledRequests(
            prompts=options.prompt.sample(lengths, num),
            outputs=options.output.sample(lengths, num),
            prefixes=prefixes,
            groups=groups,
            clients=_choose(people, list(options.clients.values()), num),
            priorities=_choose(people, list(options.priorities.values()), num),
            noise=generator(seed, self._stream, NOISE).standard_normal(num),
        )

    def _sample_groups(self, num: int) -> tuple[LongArray, LongArray]:
        prefix = self._options.prefix
        if prefix is None:
            return np.zeros(num, np.int64), np.full(num, -1, np.int64)
        rng = generator(self._config.seed, self._stream, GROUPS)
        weights = 1.0 / np.arange(1, prefix.groups + 1) ** prefix.zipf
        groups = _choose(rng, weights.tolist(), num)
        cold = rng.random(num) < prefix.cold
        lengths = prefix.length.sample(rng, prefix.groups)[groups]
        groups[cold] = -2 - np.flatnonzero(cold)
        return lengths, groups


def cut_notes(prompts: LongArray, totals: LongArray, max_model_len: int) -> tuple[str, ...]:
    """Sentences about int64[n] lengths that do not fit the model."""
    notes: list[str] = []
    for what, count in (
        ("prompts", int(np.count_nonzero(prompts >= max_model_len))),
        ("outputs", int(np.count_nonzero(totals > max_model_len))),
    ):
        if count:
            notes.append(
                f"{count} of {len(prompts)} {what} were cut to max_model_len {max_model_len}"
            )
    return tuple(notes)


def _choose(rng: np.random.Generator, weights: list[float], num: int) -> LongArray:
    if len(weights) == 1:
        return np.zeros(num, np.int64)
    return rng.choice(len(weights), num, p=chances(np.array(weights)))
