"""A token bucket per client: a rate of tokens, and a burst that may be saved up."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nanofw.plugins import FinishReason, Options, Policy, RequestView, SchedulerView


class TokenRateOptions(Options):
    """`scheduler: {name: token_rate, ...}`."""

    rate: Annotated[float, Field(gt=0)] = 1000.0
    """Tokens per second and client, prompt and longest output together."""
    burst: Annotated[float, Field(gt=0)] = 4000.0
    """Tokens that a client may save up. A larger request waits for a full bucket."""


class TokenRate(Policy):
    """A request starts when its client's bucket holds its tokens; others may pass it meanwhile.

    When nothing runs, `wake` says when the first bucket is full enough, and the engine waits.
    """

    skip_ahead = 64

    def __init__(self, options: TokenRateOptions, config: object) -> None:
        super().__init__(options, config)
        self._options = options
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when that was
        self._waiting: dict[int, RequestView] = {}

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._buckets.setdefault(request.client, (self._options.burst, view.now))
        self._waiting[request.index] = request

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        return request.num_preemptions > 0 or self._ready_at(request) <= view.now

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._waiting.pop(request.index, None)
        if not request.num_preemptions:
            left = self._tokens(request.client, view.now) - self._cost(request)
            self._buckets[request.client] = left, view.now

    def wake(self, view: SchedulerView) -> float | None:
        return min(map(self._ready_at, self._waiting.values()), default=None)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self._waiting.pop(request.index, None)

    def _cost(self, request: RequestView) -> float:
        return min(request.num_prompt_tokens + request.max_tokens, self._options.burst)

    def _tokens(self, client: str, now: float) -> float:
        tokens, then = self._buckets[client]
        return min(self._options.burst, tokens + (now - then) * self._options.rate)

    def _ready_at(self, request: RequestView) -> float:
        tokens, then = self._buckets[request.client]
        return then + max(0.0, self._cost(request) - tokens) / self._options.rate
