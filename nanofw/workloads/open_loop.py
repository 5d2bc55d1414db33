"""Open loops: requests come when they come, whatever the engine does.

`poisson`, `gamma` and `on_off` differ in the times between arrivals; `streams` lays several of
them over each other, each with its own clients and lengths.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.plugins import Options
from nanofw.workloads.arrivals import gamma_gaps, on_off_gaps, poisson_gaps
from nanofw.workloads.mix import ARRIVALS, Count, MixOptions, RequestMix, generator


class OpenLoopOptions(MixOptions):
    """What all open loops have."""

    num_requests: Count = 1000
    """Requests in all."""
    rate: PositiveFloat = 1.0
    """Mean arrivals per second."""
    start_s: NonNegativeFloat = 0.0
    """When the first may come."""

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        """float64[num], seconds before each arrival."""
        return poisson_gaps(rng, num, self.rate)


class PoissonOptions(OpenLoopOptions):
    """`workload: {name: poisson, ...}`: arrivals independent of each other."""


class GammaOptions(OpenLoopOptions):
    """`workload: {name: gamma, ...}`: bursts, by the spread of the times between arrivals."""

    cv: PositiveFloat = 2.0
    """Standard deviation of a gap over its mean: 1 is Poisson, more is burstier."""

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        return gamma_gaps(rng, num, self.rate, self.cv)


class OnOffOptions(OpenLoopOptions):
    """`workload: {name: on_off, ...}`: Poisson for `on_s`, silence for `off_s`, and again.

    `rate` is the mean over both.
    """

    on_s: PositiveFloat = 10.0
    """Seconds with arrivals."""
    off_s: PositiveFloat = 10.0
    """Seconds without arrivals, after which arrivals come again."""

    def gaps(self, rng: np.random.Generator, num: int) -> FloatArray:
        return on_off_gaps(rng, num, self.rate, self.on_s, self.off_s)


class OpenLoop(Workload):
    """One stream of requests. `stream` tells streams of one run apart."""

    def __init__(
        self,
        options: OpenLoopOptions,
        config: WorkloadConfig,
        stream: int = 0,
        prefix: str = "",
    ) -> None:
        self._options, self._prefix = options, prefix
        num = options.num_requests
        gaps = options.gaps(generator(config.seed, stream, ARRIVALS), num)
        times = options.start_s + np.cumsum(gaps)
        self._arrivals = config.start + config.time_scale * times
        self._mix = RequestMix(options, config, stream, num)
        self.notes: tuple[str, ...] = self._mix.notes
        self.shares_prefixes: bool = options.prefix is not None

    @property
    def num_requests(self) -> int:
        return len(self._arrivals)

    @property
    def rate(self) -> float:
        return self._options.rate

    def initial(self) -> Iterator[Request]:
        for i, arrival in enumerate(self._arrivals.tolist()):
            yield self._mix.make(i, f"{self._prefix}{i}", arrival)


class PoissonStream(PoissonOptions):
    """A part of `streams`."""

    name: Literal["poisson"] = "poisson"


class GammaStream(GammaOptions):
    """A part of `streams`."""

    name: Literal["gamma"]


class OnOffStream(OnOffOptions):
    """A part of `streams`."""

    name: Literal["on_off"]


Stream: TypeAlias = Annotated[
    PoissonStream | GammaStream | OnOffStream, Field(discriminator="name")
]


class StreamsOptions(Options):
    """`workload: {name: streams, streams: [{name: poisson, ...}, ...]}`."""

    streams: Annotated[tuple[Stream, ...], Field(min_length=1)]
    """Options of open loops, each with its `name`."""


class Streams(Workload):
    """Several open loops over each other."""

    def __init__(self, options: StreamsOptions, config: WorkloadConfig) -> None:
        self._streams = [
            OpenLoop(stream, config, number, f"{number}-")
            for number, stream in enumerate(options.streams)
        ]
        self.notes: tuple[str, ...] = tuple(
            note for stream in self._streams for note in stream.notes
        )
        self.shares_prefixes: bool = any(stream.shares_prefixes for stream in self._streams)

    @property
    def num_requests(self) -> int:
        return sum(stream.num_requests for stream in self._streams)

    @property
    def rate(self) -> float:
        return sum(stream.rate for stream in self._streams)

    def initial(self) -> Iterator[Request]:
        return heapq.merge(*(stream.initial() for stream in self._streams), key=_arrival)


def _arrival(request: Request) -> float:
    return request.arrival or 0.0
