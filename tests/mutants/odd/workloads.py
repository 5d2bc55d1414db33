"""Workloads that are right and odd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nanofw.plugins import Options, Plugin, Request, Workload, hookimpl
from nanofw.workloads.closed_loop import ClosedLoop
from nanofw.workloads.open_loop import OpenLoop
from tests.mutants.broken.workloads import Few, Plain, Users
from tests.mutants.collection import Collection

sample = Collection("workload/1")


@hookimpl
def workload() -> list[Plugin]:
    return sample.plugins()


@sample(Few)
class AllAtOnce(Plain):
    """All requests come at the same time, which is the start."""

    rate: Any = None

    def changed(self, i, request):
        return replace(request, arrival=self._mix._config.start)


@sample(Few)
class RisingRate(OpenLoop):
    """The rate rises while it runs: `rate` is the mean."""

    def __init__(self, options, config):
        super().__init__(options, config)
        gaps = np.diff(self._arrivals, prepend=config.start)
        weights = np.linspace(1.8, 0.2, len(gaps))
        self._arrivals = config.start + np.cumsum(gaps * weights)


class OwnOptions(Options):
    num_requests: int = 20
    alpha: float = 1.7


class _Own(Workload):
    """Its own requests, numbered."""

    shares_prefixes = False

    def __init__(self, options, config):
        self.options, self.config = options, config

    @property
    def num_requests(self):
        return self.options.num_requests

    def made(self, i, arrival, length=5, output=4):
        config = self.config
        rng = np.random.default_rng([config.seed % (1 << 64), i])
        length = min(length, config.max_model_len - 1)
        return Request(
            id=f"own-{i}",
            prompt_token_ids=rng.integers(0, config.vocab_size, length, np.int32),
            sampling=replace(
                config.sampling,
                max_tokens=min(output, config.max_model_len - length),
                seed=int(rng.integers(1 << 60)),
                ignore_eos=True,
            ),
            arrival=arrival,
        )


@sample(OwnOptions)
class LongTails(_Own):
    """Lengths follow Zipf's law, and arrivals come by threes; it states no rate."""

    def initial(self):
        rng = np.random.default_rng(self.config.seed % (1 << 64))
        lengths = np.minimum(rng.zipf(self.options.alpha, (self.num_requests, 2)), 1000)
        for i, (prompt, output) in enumerate(lengths.tolist()):
            arrival = self.config.start + self.config.time_scale * (i // 3) * 0.5
            yield self.made(i, arrival, prompt, output)


@sample(OwnOptions)
class Chain(_Own):
    """One request comes by itself, and each other when the one before has finished."""

    count = 1

    def initial(self):
        yield self.made(0, self.config.start)

    def follow(self, output):
        if self.count == self.num_requests:
            return ()
        self.count += 1
        return (self.made(self.count - 1, output.finished),)


@sample(OwnOptions)
class Tree(_Own):
    """Each answer brings two requests, until there are as many as were said."""

    count = 1

    def initial(self):
        yield self.made(0, self.config.start)

    def follow(self, output):
        first, self.count = self.count, min(self.count + 2, self.num_requests)
        return [self.made(i, output.finished + 0.01) for i in range(first, self.count)]


@sample(OwnOptions)
class MadeWhenNeeded(_Own):
    """Nothing is made before it is asked for; arrivals are those of a clockwork."""

    rate: Any = 4.0

    def initial(self):
        return (
            self.made(i, self.config.start + self.config.time_scale * (i + 1) / 4)
            for i in range(self.num_requests)
        )


@sample(Users)
class Impatient(ClosedLoop):
    """Users do not think at all, and their requests have deadlines, clients and priorities."""

    def _make(self, arrival):
        request = super()._make(arrival)
        number = int(request.id)
        return replace(
            request,
            deadline=arrival + 1.0,
            client=f"user {number % 4}",
            priority=number % 3 - 1,
            expected_output_tokens=1 + number % 5,
        )
