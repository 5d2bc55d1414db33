"""Policies that are right and odd."""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from enum import StrEnum
from fractions import Fraction

from nanofw.plugins import Options, Plugin, Refuse, hookimpl
from tests.mutants.collection import Collection
from tests.mutants.plain.schedulers import Following, Plain

sample = Collection("scheduler/2", {"overlap": True})


@hookimpl
def scheduler() -> list[Plugin]:
    return sample.plugins()


@sample()
class LastComeFirst(Plain):
    """Any order is allowed, also the reverse of the usual one."""

    def key(self, request, view):
        return -request.arrival, -request.index


@sample()
class SeededOrder(Plain):
    """The order is random, and a function of the submission index alone."""

    def key(self, request, view):
        return random.Random(request.index).random()


@sample()
class TuplesAsKeys(Plain):
    """Keys are tuples of texts and fractions, all of one shape, which can be compared."""

    def key(self, request, view):
        return request.client, (Fraction(request.priority, 3), request.id), request.arrival


@sample()
class RefusesLongPrompts(Plain):
    """A policy may refuse requests when they arrive."""

    def key(self, request, view):
        if request.num_prompt_tokens > 10:
            return Refuse("prompts of more than 10 tokens are not served", retry_after_s=60.0)
        return request.arrival


@sample()
class ShedsTheLate(Plain):
    """A policy may refuse requests that have waited too long."""

    window = 4

    def window_key(self, requests, view):
        late = Refuse("it has waited too long")
        return [late if view.now > r.arrival + 0.2 else r.arrival for r in requests]


@sample()
class AlternatesRows(Plain):
    """Half of the rows are paused in each step, the others in the next; all of them get on."""

    turn = 0

    def pause(self, view):
        rows = view.running.rows.tolist()
        self.turn += 1
        return rows[self.turn % 2 :: 2] if len(rows) > 1 else []


@sample()
class SmallChunks(Plain):
    """A chunk may have a single token: that is slow, and right."""

    def chunk(self, request, view):
        return 1 + request.index % 3


@sample()
class OneAtATime(Plain):
    """One request runs alone, from its beginning to its end."""

    def admit(self, request, view):
        return not view.num_running


@sample()
class GroupOfItsOwn(Following):
    """Each request is a group, whose key grows while it waits, and is dropped with it."""

    skip_ahead = 3

    def group(self, request):
        return request.id, request.sample_index

    def group_key(self, group, view):
        return view.now


@sample()
class ByTheView(Plain):
    """What was computed for each sample is kept by its view, which is the same as long as it is."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.progress = Counter()

    def on_progress(self, rows, num_tokens, num_decodes, view):
        for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            self.progress[view.running.request(row)] += count

    def key(self, request, view):
        return self.progress[request], request.arrival

    def on_finish(self, request, reason, view):
        del self.progress[request]


@sample()
class Ticks(Plain):
    """Requests start at whole ticks; where nothing runs, `wake` names the next one."""

    def admit(self, request, view):
        return bool(view.num_running) or view.now >= self._tick(request.arrival)

    def wake(self, view):
        return self._tick(view.now)

    def _tick(self, now):
        return 0.5 * math.floor(now / 0.5 + 1)


@sample()
class MakesRoomForTheYoung(LastComeFirst):
    """A later request has the smaller key and may push out an earlier one, over and over."""

    def victim(self, for_request, view):
        return max(view.running.rows.tolist(), key=view.running.key)


@sample()
class LittleByLittle(Plain):
    """A step has room for what decodes and two tokens of prompts."""

    def step_budget(self, view):
        return view.num_decoding + 2


@sample()
class RemembersTen(Plain):
    """It keeps numbers of the last ten clients, which is bounded, and made when first needed."""

    def key(self, request, view):
        return self._known().get(request.client, 0), request.arrival

    def on_finish(self, request, reason, view):
        known = self._known()
        known[request.client] = known.pop(request.client, 0) + request.num_output_tokens
        while len(known) > 10:
            known.popitem(last=False)

    def _known(self) -> OrderedDict[str, int]:
        if not hasattr(self, "known"):
            self.known: OrderedDict[str, int] = OrderedDict()
        return self.known


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"


class Inner(Options):
    factor: float = 1.5


class AllTypes(Options):
    direction: Direction = Direction.DOWN
    bounds: tuple[int, ...] = (1, 2)
    names: dict[str, float] = {}  # noqa: RUF012 # pydantic copies defaults
    inner: Inner = Inner()
    bound: float | None = None
    flag: bool = True


@sample(AllTypes)
class OptionsOfAllTypes(Plain):
    """Its options are an enumeration, a tuple, a mapping, a model, a flag and a number or null."""

    def key(self, request, view):
        sign = -1 if self.options.direction is Direction.DOWN else 1
        return sign * self.options.inner.factor * request.num_prompt_tokens
