"""A workload whose answers are looked at before its requests reach an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload
from nanofw.errors import PluginError
from nanofw.plugin_calls import PluginCalls, number_of

LATEST_S = 1e12
"""Latest arrival. A float then counts in tenths of a millisecond."""
_END = object()


class CheckedWorkload(PluginCalls, Workload):
    """Passes calls on; what a call raises or answers is told with the workload's name.

    What is wrong with a single request, a prompt that is too long for example, is the engine's
    to say. Here a request has the types that everybody relies on, and there are not more of them
    than the workload promised.
    """

    def __init__(self, plugin: Workload, label: str) -> None:
        super().__init__(label, PluginError)
        self._plugin = plugin
        self._left = self._num_requests = self._count()
        self.notes: tuple[str, ...] = self._texts()
        self.shares_prefixes: bool = self._flag()

    @property
    def num_requests(self) -> int:
        return self._num_requests

    @property
    def rate(self) -> float | None:
        rate: object = self.call("rate", lambda: self._plugin.rate)
        if rate is not None and not 0 < (number_of(rate) or 0.0) < math.inf:
            raise self.wrong("rate", rate, "requests per second, or None")
        return rate

    def initial(self) -> Iterator[Request]:
        self._left = self._num_requests
        last = -math.inf
        for request in self._each("initial", self._plugin.initial):
            arrival = math.nan if request.arrival is None else request.arrival
            if not last <= arrival < math.inf:
                raise self.error(
                    f"initial() gives request {request.id!r} the arrival {request.arrival} after "
                    f"{last:g} s: arrivals are times that do not fall"
                )
            if arrival > LATEST_S:
                raise self.error(
                    f"initial() gives request {request.id!r} the arrival {arrival:g} s: after "
                    f"{LATEST_S:g} s a clock does not tell two steps apart; raise the rate"
                )
            last = arrival
            yield request

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        return list(self._each("follow", lambda: self._plugin.follow(output)))

    def _each(self, method: str, make: Callable[[], Iterable[Request]]) -> Iterator[Request]:
        requests = self.call(method, lambda: iter(make()))
        while True:
            request: Any = self.call(method, next, requests, _END)
            if request is _END:
                return
            self._left -= 1
            if self._left < 0:
                raise self.error(
                    f"{method}() gave more than the {self._num_requests} requests that "
                    "num_requests promises"
                )
            self._check(method, request)
            yield request

    def _check(self, method: str, request: object) -> None:
        if not isinstance(request, Request):
            raise self.wrong(method, request, "a Request")
        for name, value in (("id", request.id), ("client", request.client)):
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self.wrong(method, request, f"a Request whose {name} is a string")
        if request.arrival is not None and number_of(request.arrival) is None:
            raise self.wrong(method, request, "a Request whose arrival is a number of seconds")
        try:
            ids = np.asarray(request.prompt_token_ids)
        except ValueError:  # nested lists of different lengths
            ids = np.asarray(None)
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise self.wrong(method, request, "a Request whose prompt is a list of token ids")

    def _count(self) -> int:
        number: object = self.call("num_requests", lambda: self._plugin.num_requests)
        return self.integer("num_requests", number, 0)

    def _texts(self) -> tuple[str, ...]:
        notes: Any = self.call("notes", lambda: tuple(self._plugin.notes))
        if not all(isinstance(note, str) for note in notes):
            raise self.wrong("notes", notes, "sentences")
        return notes

    def _flag(self) -> bool:
        value: object = self.call("shares_prefixes", lambda: self._plugin.shares_prefixes)
        return self.flag("shares_prefixes", value)
