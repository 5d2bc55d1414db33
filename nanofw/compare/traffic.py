"""What a run's workload asked for, whatever the arm made of it: a fingerprint, and in words."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload

_WORD = (1 << 64) - 1
_TICKS = 1e4
"""Per second: times are compared in tenths of a millisecond, finer than clocks round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSums:
    """The requests of a run, in sums that depend on each of them.

    Hints to a policy (priorities, deadlines, expected lengths) do not count: they say something
    of a request and do not change it.

    Attributes:
        num_requests, prompt_tokens, output_tokens: asked for, in all.
        rate: arrivals per second from the first to the last of those known beforehand; None:
            they came at once, or there are too few.
        times: fingerprint of when requests come: arrivals, and pauses after answers.
        lengths: of prompt and output tokens, samples and clients.
        tokens: of the token ids, below `vocab_size`, of prompts that no answer is a part of.
    """

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float | None
    times: int
    lengths: int
    tokens: int
    vocab_size: int

    @property
    def shape(self) -> tuple[int, int]:
        """When requests come and how long they are: equal for two copies of one traffic."""
        return self.times, self.lengths

    def is_that_of(self, other: TrafficSums) -> bool:
        """Whether both runs got the same requests. Models with other tokens may differ in them."""
        tokens = self.tokens if self.vocab_size == other.vocab_size else other.tokens
        return self.shape == other.shape and tokens == other.tokens

    def text(self) -> str:
        """`80 requests at 1.1 a second with 5,120 prompt and 1,280 output tokens`."""
        rate = "" if self.rate is None else f" at {self.rate:.4g} a second"
        return (
            f"{self.num_requests:,} requests{rate} with {self.prompt_tokens:,} prompt and "
            f"{self.output_tokens:,} output tokens"
        )


class ObservedWorkload(Workload):
    """Passes a workload on and notes what it asks for."""

    def __init__(self, inner: Workload, vocab_size: int) -> None:
        self._inner, self._vocab_size = inner, vocab_size
        self.notes: tuple[str, ...] = inner.notes
        self.shares_prefixes: bool = inner.shares_prefixes
        self._num = self._prompt_tokens = self._output_tokens = 0
        self._times = self._lengths = self._tokens = 0
        self._num_initial = 0
        self._first = self._last = 0.0

    @property
    def num_requests(self) -> int:
        return self._inner.num_requests

    @property
    def rate(self) -> float | None:
        return self._inner.rate

    @property
    def missing(self) -> int:
        """Requests that were promised and did not come; 0 where they depend on answers."""
        return self.num_requests - self._num if self._num == self._num_initial else 0

    def initial(self) -> Iterator[Request]:
        for request in self._inner.initial():
            arrival = self._last if request.arrival is None else request.arrival
            self._first = self._first if self._num_initial else arrival
            self._last = arrival
            self._num_initial += 1
            tokens = np.ascontiguousarray(request.prompt_token_ids, np.int32)
            self._tokens = _plus(
                self._tokens, zlib.crc32(request.id.encode()), zlib.crc32(tokens.data)
            )
            self._note(request, arrival - self._first)
            yield request

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        requests = self._inner.follow(output)
        for request in requests:
            self._note(request, (request.arrival or output.finished) - output.finished)
        return requests

    def traffic(self) -> TrafficSums:
        """All that was asked for until now."""
        span = self._last - self._first
        return TrafficSums(
            num_requests=self._num,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            rate=(self._num_initial - 1) / span if span > 0 else None,
            times=self._times,
            lengths=self._lengths,
            tokens=self._tokens,
            vocab_size=self._vocab_size,
        )

    def _note(self, request: Request, seconds: float) -> None:
        name, num_prompt = zlib.crc32(request.id.encode()), len(request.prompt_token_ids)
        num_output, num_samples = request.sampling.max_tokens or 0, request.sampling.n
        client = zlib.crc32(request.client.encode())
        self._times = _plus(self._times, name, round(seconds * _TICKS))
        self._lengths = _plus(self._lengths, name, num_prompt, num_output, num_samples, client)
        self._num += 1
        self._prompt_tokens += num_prompt
        self._output_tokens += num_output * num_samples


def _plus(total: int, *numbers: int) -> int:
    """A sum over requests, since answers may come in any order."""
    return (total + hash(numbers)) & _WORD
