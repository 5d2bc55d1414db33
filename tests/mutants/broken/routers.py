"""Routers that are wrong."""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

from nanofw.plugins import Plugin, Router, hookimpl
from nanofw.routers.round_robin import RoundRobin
from tests.mutants.collection import Collection

sample = Collection("router/1")


@hookimpl
def router() -> list[Plugin]:
    return sample.plugins()


class Plain(Router):
    """Where the fewest tokens are to compute."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        return min(ready, key=lambda replica: (replica.num_tokens, replica.number)).number


@sample()
class PlaceAmongTheReady(Plain):
    """It answers a place in the list of replicas that are ready, which is not their number."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        return min(range(len(ready)), key=lambda place: ready[place].num_tokens)


@sample()
class ReadyOrNot(Plain):
    """A replica that is gone has nothing to compute, and so is chosen before all others."""

    def choose(self, request, replicas):
        return min(replicas, key=lambda replica: replica.num_tokens).number


@sample()
class HashOfTheClient(Plain):
    """A client's replica is that of a hash of its text, which differs between processes."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        return ready[hash(request.client) % len(ready)].number


@sample()
class TurnOfTheClass(Plain):
    """Whose turn it is stands on the class: a second run goes on where the first one ended."""

    turn: ClassVar[int] = 0

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        type(self).turn += 1
        return ready[self.turn % len(ready)].number


@sample()
class KeepsRequests(Plain):
    """Every request is kept for ever, with its prompt."""

    def choose(self, request, replicas):
        vars(self).setdefault("seen", []).append(request)
        return super().choose(request, replicas)


@sample()
class RemembersTheFirstViews(Plain):
    """It goes on with the replicas of its first call, whose loads are no longer true."""

    views = None

    def choose(self, request, replicas):
        self.views = self.views or replicas
        return super().choose(request, self.views)


@sample()
class AnswersTheReplica(Plain):
    """It answers the replica in place of its number."""

    def choose(self, request, replicas):
        number = super().choose(request, replicas)
        return next(replica for replica in replicas if replica.number == number)


@sample()
class FromTheEnd(Plain):
    """It counts from the end, as lists do: -1 is the last one."""

    def choose(self, request, replicas):
        return super().choose(request, replicas) - len(replicas)


@sample()
class Unseeded(Plain):
    """The choice is random, and no simulation can be had again."""

    def choose(self, request, replicas):
        return random.choice([replica.number for replica in replicas if replica.is_ready])


@sample()
class ReadsTheClock(Plain):
    """The choice depends on how fast this machine is at the moment."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        return ready[time.perf_counter_ns() // 1000 % len(ready)].number


@sample()
class FirstLetter(Plain):
    """Clients are told apart by their first letter; the empty name has none."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        return ready[ord(request.client[0]) % len(ready)].number


@sample()
class MeanOfTheOthers(Plain):
    """It divides by the number of the other replicas, of which there may be none."""

    def choose(self, request, replicas):
        ready = [replica for replica in replicas if replica.is_ready]
        total = sum(replica.num_tokens for replica in ready)
        return min(ready, key=lambda r: (r.num_tokens - total) / (len(ready) - 1)).number


@sample()
class LostForEver(Plain):
    """A replica that was lost once is never chosen again, also when it alone is ready."""

    def on_lost(self, number):
        vars(self).setdefault("gone", set()).add(number)

    def choose(self, request, replicas):
        gone = vars(self).get("gone", set())
        return super().choose(request, [r for r in replicas if r.number not in gone])


@sample()
class LosesTheUnused(Plain):
    """The loss of a replica that was never chosen is an error."""

    def choose(self, request, replicas):
        number = super().choose(request, replicas)
        vars(self).setdefault("counts", {})[number] = 1
        return number

    def on_lost(self, number):
        del vars(self)["counts"][number]


@sample()
class PrefixBlocksOfNoBound(Plain):
    """All blocks are to be remembered, and it says so by None."""

    prefix_blocks: Any = None


@sample()
class RemembersLessThanNothing(Plain):
    """The number of blocks that are remembered is negative."""

    prefix_blocks = -1


@sample()
class SortsThePrompt(Plain):
    """It sorts the request's own tokens to see how many differ."""

    def choose(self, request, replicas):
        request.prompt_token_ids.sort()
        return super().choose(request, replicas)


@sample()
class MisspeltHook(RoundRobin):
    """`on_loss` is never called, so that it never learns that a cache is gone."""

    def on_loss(self, number):
        self._last = -1


@sample()
class ShareAsNumber(Plain):
    """The number is the result of a division, and so is not an integer."""

    def choose(self, request, replicas):
        return super().choose(request, replicas) / 1
