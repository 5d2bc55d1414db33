"""Closed loop: a number of users, each of whom waits for the answer before asking again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import NonNegativeFloat

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.workloads.mix import ARRIVALS, Count, MixOptions, RequestMix, generator


class ClosedLoopOptions(MixOptions):
    """`workload: {name: closed_loop, ...}`."""

    num_requests: Count = 1000
    """Requests in all."""
    concurrency: Count = 16
    """Number of users. Each has one request at a time, so this is the largest number of requests at
    once."""
    think_s: NonNegativeFloat = 0.0
    """Mean time between an answer and the next request of the same user; the times are
    exponentially distributed."""


class ClosedLoop(Workload):
    """The load follows the engine: a slower one gets fewer requests per second."""

    def __init__(self, options: ClosedLoopOptions, config: WorkloadConfig) -> None:
        self._options, self._config = options, config
        self._mix = RequestMix(options, config, 0, options.num_requests)
        self.notes: tuple[str, ...] = self._mix.notes
        self.shares_prefixes: bool = options.prefix is not None
        rng = generator(config.seed, 0, ARRIVALS)
        thinking = rng.exponential(1.0, options.num_requests) * options.think_s
        self._thinking = (config.time_scale * thinking).tolist()
        self._next = 0

    @property
    def num_requests(self) -> int:
        return self._options.num_requests

    def initial(self) -> Iterator[Request]:
        for _ in range(min(self._options.concurrency, self.num_requests)):
            yield self._make(self._config.start)

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        if self._next == self.num_requests:
            return ()
        return (self._make(output.finished + self._thinking[self._next]),)

    def _make(self, arrival: float) -> Request:
        number, self._next = self._next, self._next + 1
        return self._mix.make(number, str(number), arrival)
