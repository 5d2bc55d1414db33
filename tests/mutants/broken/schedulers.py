"""Policies that are wrong."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from typing import ClassVar

from nanofw.plugins import Plugin, Refuse, RequestView, hookimpl
from nanofw.schedulers.fair_share import FairShare, FairShareOptions
from nanofw.schedulers.partitioned import Partitioned, PartitionedOptions
from nanofw.schedulers.priority import Priority, PriorityOptions
from tests.mutants.collection import Collection
from tests.mutants.plain.schedulers import Following, Plain

sample = Collection("scheduler/2", {"overlap": True})


@hookimpl
def scheduler() -> list[Plugin]:
    return sample.plugins()


@sample()
class HashOfId(Plain):
    """The order is that of hashes of texts, which differ from one process to the next."""

    def key(self, request, view):
        return hash(request.id)


@sample()
class SetOrder(Plain):
    """A client's place is its place in a set of texts, which differs between processes."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.clients: set[str] = set()

    def key(self, request, view):
        self.clients.add(request.client)
        return list(self.clients).index(request.client)


@sample()
class SharedCounters(Plain):
    """Counts are kept on the class, so that a second run begins with those of the first."""

    served: ClassVar[Counter[str]] = Counter()

    def key(self, request, view):
        return self.served[request.client]

    def on_finish(self, request, reason, view):
        self.served[request.client] += 1


@sample()
class MisspeltHook(Plain):
    """`on_finished` is never called, so that no request is ever counted as gone."""

    def on_finished(self, request, reason, view):
        self.gone = request.index


@sample()
class OldSignature(Plain):
    """`on_finish` lacks the view, so that no call of it succeeds."""

    def on_finish(self, request, reason):
        pass


@sample()
class LonelyWindow(Plain):
    """A window is set, and nothing gives it keys: the wish to order it is lost without a word."""

    window = 8


@sample()
class ShrinkingGroupKey(Following):
    """The key of a group shrinks with each of its requests that arrive while it waits."""

    def group(self, request):
        return request.client

    def group_key(self, group, view):
        return -sum(r.client == group and not r.is_running for r in self.live)


@sample()
class NamesAGoneRow(Plain):
    """The victim is the row that started last, also when it is long gone."""

    row = None

    def on_start(self, row, request, view):
        self.row = row

    def victim(self, for_request, view):
        return self.row


@sample()
class VictimIsRowNought(Plain):
    """A row number stands in the code, whether a request is in it or not."""

    def victim(self, for_request, view):
        return 0 if for_request is None else None


@sample(PriorityOptions)
class NamesABetterRow(Priority):
    """A waiting request pushes out the row of the smallest key, more urgent than itself."""

    def victim(self, for_request, view):
        return min(view.running.rows.tolist(), key=view.running.key)


@sample()
class ChunkOfNothing(Plain):
    """The chunk is an eighth of what is left of the step, which may be no token."""

    def chunk(self, request, view):
        return view.budget // 8


@sample()
class WakesNow(Plain):
    """It asks to be woken at the time that it is, so that a run never gets on."""

    def admit(self, request, view):
        return view.now > request.arrival + 0.02

    def wake(self, view):
        return view.now


@sample()
class WaitsForCompany(Plain):
    """A request is admitted beside others alone, so that the first one never is."""

    def admit(self, request, view):
        return view.num_running > 0


@sample()
class NeverLarge(Plain):
    """A request of more than a quarter of the pool is put off for ever."""

    def admit(self, request, view):
        return view.blocks_needed(request) <= view.num_blocks // 4

    def wake(self, view):
        return view.now + 1.0


@sample()
class KeysOfTwoTypes(Plain):
    """The key of a request without deadline is None, which is not comparable with a number."""

    def key(self, request, view):
        return request.deadline


@sample()
class KeysThatAreNoNumber(Plain):
    """The key of a request without deadline is NaN, and nothing has an order beside it."""

    def key(self, request, view):
        return math.nan if request.deadline is None else request.deadline


@sample()
class ReasonAsKey(Plain):
    """A text is returned where `Refuse` is meant: among numbers it cannot be compared."""

    def key(self, request, view):
        return "the prompt is too long" if request.num_prompt_tokens > 12 else request.arrival


@sample()
class KeepsRequests(Plain):
    """Every request that ever came is kept."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.seen: list[RequestView] = []

    def on_arrival(self, request, view):
        self.seen.append(request)


@sample()
class ForgetsTheAborted(Following):
    """Requests that end while they wait are kept for ever."""

    def on_finish(self, request, reason, view):
        if request.is_running:
            del self.live[request]


@sample()
class UnseededOrder(Plain):
    """The order is random and cannot be had again."""

    def key(self, request, view):
        return random.random()


@sample()
class AddressOrder(Plain):
    """Requests are ordered by where they lie in memory."""

    def key(self, request, view):
        return id(request) >> 4 & 0xFF


@sample()
class WallClockOrder(Plain):
    """It reads the machine's clock instead of the engine's, so that no run can be had again."""

    def key(self, request, view):
        return time.perf_counter_ns() % 1009


@sample()
class RekeysAll(Following):
    """It names all requests, though it has said that it names two at most."""

    max_rekeys = 2

    def rekey(self, view):
        return list(self.live)


@sample()
class RekeysTheFinished(Plain):
    """It goes on to name a request that has finished."""

    max_rekeys = 1
    first = None

    def on_arrival(self, request, view):
        self.first = self.first or request

    def rekey(self, view):
        return [] if self.first is None else [self.first]


@sample()
class RefusesTheRunning(Following):
    """A request that runs is refused when its key is asked for anew."""

    max_rekeys = 64

    def rekey(self, view):
        return list(self.live)

    def key(self, request, view):
        return Refuse("it takes too long") if request.num_output_tokens > 4 else request.arrival


@sample()
class PausesLeftRows(Plain):
    """It pauses rows that once ran and are empty now."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.rows: list[int] = []

    def on_start(self, row, request, view):
        self.rows.append(row)

    def pause(self, view):
        return self.rows[:-4]


@sample()
class PausesAll(Plain):
    """As soon as four requests run all of them are paused, and nothing says until when."""

    def pause(self, view):
        return view.running.rows.tolist() if view.num_running >= 4 else []


@sample()
class WindowLosesSome(Plain):
    """Requests without a deadline get no key, so that there are fewer keys than requests."""

    window = 8

    def window_key(self, requests, view):
        return [request.deadline for request in requests if request.deadline is not None]


@sample()
class DecodesAlone(Plain):
    """The budget of a step is that of the rows that decode: no prompt is ever computed."""

    def step_budget(self, view):
        return view.num_decoding


@sample()
class LosesThePreempted(Plain):
    """What was found at the arrival is dropped at the start, and is missing after a preemption."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.costs: dict[int, int] = {}

    def key(self, request, view):
        return self.costs[request.index]

    def on_arrival(self, request, view):
        self.costs[request.index] = request.num_prompt_tokens

    def on_start(self, row, request, view):
        del self.costs[request.index]

    def on_finish(self, request, reason, view):
        self.costs.pop(request.index, None)


@sample()
class SamplesByTheId(Plain):
    """Progress is kept by the id, which samples of a request share: the first to end drops it."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.progress: dict[str, int] = {}

    def on_arrival(self, request, view):
        self.progress[request.id] = 0

    def on_progress(self, rows, num_tokens, num_decodes, view):
        for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            self.progress[view.running.request(row).id] += count

    def on_finish(self, request, reason, view):
        self.progress.pop(request.id, None)


@sample()
class LiveByTheIndex(Plain):
    """The live requests are kept by the index, so that a sample takes the place of another."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.live: dict[int, RequestView] = {}

    def on_arrival(self, request, view):
        self.live[request.index] = request

    def on_finish(self, request, reason, view):
        del self.live[request.index]


@sample()
class ListsAsGroups(Plain):
    """A group is a list, which cannot be looked up."""

    def group(self, request):
        return [request.client]


@sample()
class WritesWhatItIsShown(Plain):
    """It changes the numbers of tokens that it is told of."""

    def on_progress(self, rows, num_tokens, num_decodes, view):
        num_tokens += 1


@sample()
class DividesByNought(Plain):
    """A prompt of five tokens cannot be ordered, and is refused with an error of arithmetic."""

    def key(self, request, view):
        return 1 / (request.num_prompt_tokens - 5)


@sample(FairShareOptions)
class ForgetsWhoLeft(FairShare):
    """A request that is aborted while it waits counts as waiting for ever, so that its client comes
    back after a pause with all the credit that the pause should not have earned."""

    def on_finish(self, request, reason, view):
        if request.is_running:
            super().on_finish(request, reason, view)


@sample(PartitionedOptions)
class ChargesTheRow(Partitioned):
    """The number of a row is taken for that of a group: others are charged what it decodes."""

    def on_start(self, row, request, view):
        super().on_start(row, request, view)
        self._of_row[row] = row
