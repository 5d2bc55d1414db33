"""Routers that are right and odd."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import ClassVar

import numpy as np
import xxhash

from nanofw.plugins import Plugin, Router, hookimpl
from tests.mutants.broken.routers import Plain
from tests.mutants.collection import Collection

sample = Collection("router/1")


@hookimpl
def router() -> list[Plugin]:
    return sample.plugins()


@sample()
class OwnDice(Plain):
    """The choice is random, from a generator of its own with a fixed seed."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.dice = random.Random(1)

    def choose(self, request, replicas):
        return self.dice.choice([replica.number for replica in replicas if replica.is_ready])


@sample()
class LastOfAll(Plain):
    """Everything goes to the last replica that is ready, however busy it is."""

    def choose(self, request, replicas):
        return max(replica.number for replica in replicas if replica.is_ready)


@sample()
class NumberOfNumpy(Plain):
    """The answer is an integer of numpy."""

    def choose(self, request, replicas):
        loads = np.array([r.num_tokens if r.is_ready else np.inf for r in replicas])
        return np.argmin(loads)


@sample()
class TwoCandidates(Plain):
    """Two candidates come from a hash of the prompt; the one with fewer requests is taken."""

    sizes: ClassVar[tuple[int, ...]] = (1, 2)

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        digest = xxhash.xxh64_intdigest(request.prompt_token_ids.tobytes())
        candidates = [ready[digest // size % len(ready)] for size in self.sizes]
        return min(candidates, key=lambda r: r.num_running + r.num_waiting).number


@sample()
class HomesOfClients(Plain):
    """The homes of the last eight clients are remembered, until their replica is lost."""

    prefix_blocks = 4

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, request, replicas):
        home = self.homes.pop(request.client, None)
        if home is None or not replicas[home].is_ready:
            ready = [replica for replica in replicas if replica.is_ready]
            home = max(ready, key=lambda r: (r.cached_tokens(request), -r.num_tokens)).number
        self.homes[request.client] = home
        while len(self.homes) > 8:
            self.homes.popitem(last=False)
        return home

    def on_lost(self, number):
        for client in [client for client, home in self.homes.items() if home == number]:
            del self.homes[client]


@sample()
class MedianOfTheLast(Plain):
    """Prompts longer than the median of the last twenty go to the upper half of the replicas."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.lengths: deque[int] = deque(maxlen=20)

    def choose(self, request, replicas):
        self.lengths.append(request.num_prompt_tokens)
        ready = [replica for replica in replicas if replica.is_ready]
        is_long = request.num_prompt_tokens > sorted(self.lengths)[len(self.lengths) // 2]
        half = ready[len(ready) // 2 :] if is_long else ready[: max(1, len(ready) // 2)]
        return min(half, key=lambda replica: replica.num_tokens).number


@sample()
class NeitherBase(Router):
    """It is written without the constructor of the base, and keeps nothing of the options."""

    def __init__(self, options, config) -> None:
        self.num_asked = 0

    def choose(self, request, replicas):
        self.num_asked += 1
        first = self.num_asked % len(replicas)
        turns = [*replicas[first:], *replicas[:first]]
        return next(replica.number for replica in turns if replica.is_ready)


@sample()
class TwoAtLeast(Plain):
    """It is made with a pair of replicas in mind: for one engine alone no router is made."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.first, self.second, *_ = range(config.num_replicas)
