"""A token bucket per client: a rate of tokens, and a burst that may be saved up."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

from pydantic import Field

from nanofw.plugins import (
    FinishReason,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)


class TokenRateOptions(Options):
    """`scheduler: {name: token_rate, ...}`."""

    rate: Annotated[float, Field(gt=0)] = 1000.0
    """Tokens per second and client, prompt and longest output together."""
    burst: Annotated[float, Field(gt=0)] = 4000.0
    """Tokens that a client may save up. A larger request waits for a full bucket."""


class TokenRate(Policy):
    """A request starts when its client's bucket holds its tokens; other clients pass it meanwhile.

    A client's turn is the time from which on it may be served: when its bucket was empty, or
    will hold its next request. It never shrinks. When nothing runs, `wake` says when the first
    bucket is full enough, and the engine waits.
    """

    skip_ahead = 8  # clients whose buckets are tried in one step

    def __init__(self, options: TokenRateOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._options = options
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when that was
        self._turn: dict[Hashable, float] = {}
        self._waiting: dict[RequestView, None] = {}  # in order of arrival

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def group(self, request: RequestView) -> str:
        return request.client

    def group_key(self, group: Hashable, view: SchedulerView) -> float:
        return self._turn[group]

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        client = request.client
        self._buckets.setdefault(client, (self._options.burst, view.now))
        self._turn.setdefault(client, view.now - self._options.burst / self._options.rate)
        self._waiting[request] = None

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        ready_at = self._ready_at(request)
        if request.num_preemptions or ready_at <= view.now:
            return True
        self._turn[request.client] = max(self._turn[request.client], ready_at)
        return False

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._waiting.pop(request, None)
        if not request.num_preemptions:
            client, options = request.client, self._options
            left = self._tokens(client, view.now) - self._cost(request)
            self._buckets[client] = left, view.now
            self._turn[client] = max(self._turn[client], view.now - left / options.rate)

    def wake(self, view: SchedulerView) -> float | None:
        ready_at = min(map(self._ready_at, self._waiting), default=view.now)
        return max(ready_at, view.now + 0.001)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self._waiting.pop(request, None)

    def _cost(self, request: RequestView) -> float:
        return min(request.num_prompt_tokens + request.max_tokens, self._options.burst)

    def _tokens(self, client: str, now: float) -> float:
        tokens, then = self._buckets[client]
        return min(self._options.burst, tokens + (now - then) * self._options.rate)

    def _ready_at(self, request: RequestView) -> float:
        tokens, then = self._buckets[request.client]
        return then + max(0.0, self._cost(request) - tokens) / self._options.rate
