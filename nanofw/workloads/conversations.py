"""Conversations: each turn sends all that was said before, so prefixes grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from nanofw.contracts.arrays import IntArray, LongArray
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.errors import ConfigError
from nanofw.workloads.lengths import Lengths, Uniform
from nanofw.workloads.mix import ARRIVALS, Count, MixOptions, RequestMix, generator


class ConversationsOptions(MixOptions):
    """`workload: {name: conversations, ...}`. `prompt` is what a user adds in each turn."""

    num_conversations: Count = 200
    """Conversations in all."""
    rate: PositiveFloat = 1.0
    """Mean number of conversations that begin per second; they begin at the times of a Poisson
    process."""
    turns: Lengths = Uniform(distribution="uniform", low=2, high=8)
    """Distribution of the requests of a conversation."""
    think_s: NonNegativeFloat = 5.0
    """Mean time between an answer and the next turn, exponential."""


MAX_TURNS = 20_000_000


@dataclass(slots=True)
class _Conversation:
    first: int  # number of its first turn among all turns
    num_turns: int
    turn: int
    said: IntArray


class Conversations(Workload):
    """Turns follow the answers; a conversation ends early when its context is full."""

    def __init__(self, options: ConversationsOptions, config: WorkloadConfig) -> None:
        rng = generator(config.seed, 0, ARRIVALS)
        num = options.num_conversations
        begins = np.cumsum(rng.exponential(1.0 / options.rate, num)) * config.time_scale
        self._begins = (config.start + begins).tolist()
        # Each turn adds a token at least, so that no conversation has more of them.
        turns = np.minimum(options.turns.sample(rng, num), config.max_model_len)
        ends = np.cumsum(turns)
        self._total = int(ends[-1])
        if self._total > MAX_TURNS:
            raise ConfigError(
                f"{num:,} conversations make {self._total:,} turns; at most {MAX_TURNS:,} are made",
                key="input.workload.num_conversations",
            )
        self._mix = RequestMix(options, config, 0, self._total)
        self.notes: tuple[str, ...] = (
            *self._mix.notes,
            *self._room_notes(turns, ends, config.max_model_len),
        )
        thinking = rng.exponential(1.0, self._total) * options.think_s * config.time_scale
        self._thinking = thinking.tolist()
        self._config, self._rate = config, options.rate * self._total / num
        self._live: dict[str, _Conversation] = {}
        self._shapes = list(zip((ends - turns).tolist(), turns.tolist(), strict=True))

    def _room_notes(self, turns: LongArray, ends: LongArray, longest: int) -> tuple[str, ...]:
        """What will not be said: each turn needs room for all before it and for a token more."""
        added, answers = self._mix.lengths
        left_out = shortened = 0
        for end, num in zip(ends.tolist(), turns.tolist(), strict=True):
            asked = np.cumsum(added[end - num : end])
            asked[1:] += np.cumsum(answers[end - num : end - 1])
            count = int(np.count_nonzero(asked >= longest))
            left_out, shortened = left_out + count, shortened + (count > 0)
        if not shortened:
            return ()
        return (
            f"{shortened} of {len(turns)} conversations end early: {left_out} of {self._total} "
            f"turns do not fit max_model_len {longest}",
        )

    @property
    def num_requests(self) -> int:
        return self._total

    @property
    def rate(self) -> float:
        return self._rate

    def initial(self) -> Iterator[Request]:
        for number, (first, num_turns) in enumerate(self._shapes):
            request = self._mix.make(first, f"{number}-0", self._begins[number])
            said = np.asarray(request.prompt_token_ids, np.int32)
            self._live[request.id] = _Conversation(first, num_turns, 0, said)
            yield request

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        talk = self._live.pop(output.id, None)
        if talk is None or talk.turn + 1 >= talk.num_turns:
            return ()
        talk.turn += 1
        number = talk.first + talk.turn
        arrival = output.finished + self._thinking[number]
        request = self._mix.make(number, f"{output.id.split('-')[0]}-{talk.turn}", arrival)
        added = np.asarray(request.prompt_token_ids, np.int32)
        talk.said = np.concatenate((talk.said, output.token_ids, added))
        room = self._config.max_model_len - len(talk.said)
        if room < 1:
            return ()
        wanted = request.sampling.max_tokens or 1
        sampling = replace(request.sampling, max_tokens=min(wanted, room))
        request = replace(request, prompt_token_ids=talk.said, sampling=sampling)
        self._live[request.id] = talk
        return (request,)
