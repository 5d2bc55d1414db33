"""Longest prefix match: first the request that finds most of its prompt in the cache.

After the cache-aware order of SGLang (Zheng et al., arXiv 2312.07104), with a bound on how long
a request without a cached prefix can be overtaken.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import NonNegativeFloat, PositiveInt

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class LongestPrefixMatchOptions(Options):
    """`scheduler: {name: longest_prefix_match, ...}`."""

    window: PositiveInt = 64
    """How many of the oldest waiting requests are compared in each step that admits."""
    ageing: NonNegativeFloat = 0.0
    """A second of waiting counts as much as this number of cached tokens."""
    max_wait_s: NonNegativeFloat | None = 10.0
    """Requests that waited longer than this number of seconds come first, oldest first. null: no
    limit; then a request without a cached prefix may wait for ever."""


class LongestPrefixMatch(Policy):
    """Orders a window of the oldest waiting requests by their cached tokens."""

    def __init__(
        self, options: LongestPrefixMatchOptions, config: SchedulerConfig | None = None
    ) -> None:
        super().__init__(options, config)
        self._options = options
        self.window: int = options.window

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def window_key(
        self, requests: Sequence[RequestView], view: SchedulerView
    ) -> Sequence[tuple[bool, float]]:
        return [self._key_now(request, view) for request in requests]

    def _key_now(self, request: RequestView, view: SchedulerView) -> tuple[bool, float]:
        waited, bound = view.now - request.arrival, self._options.max_wait_s
        if bound is not None and waited > bound:
            return False, request.arrival
        return True, -(view.cached_tokens(request) + self._options.ageing * waited)
