"""Co-batching of equal prefixes: requests that begin alike run side by side.

After the grouping by shared prompts in BatchLLM (Zheng et al., arXiv 2412.03594): a prefix is
computed once, used by all who need it while it is in the cache, and may then be evicted.
"""

from __future__ import annotations

from collections import Counter
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


class PrefixBatchingOptions(Options):
    """`scheduler: {name: prefix_batching, ...}`."""

    tokens: Annotated[int, Field(ge=1)] = 256
    """Prompts that agree in this many tokens belong together."""


class PrefixBatching(Policy):
    """One queue per prefix. The prefix that runs now goes on; then the one that waits longest.

    A group's key is its turn, which is taken when its first request arrives or when it was
    served to its end: it never shrinks while the group waits.
    """

    def __init__(self, options: PrefixBatchingOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._tokens = options.tokens
        self._waiting: Counter[int] = Counter()
        self._turn: dict[Hashable, float] = {}

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def group(self, request: RequestView) -> int:
        return request.prefix_id(self._tokens)

    def group_key(self, group: Hashable, view: SchedulerView) -> float:
        return self._turn[group]

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        group = self.group(request)
        if not self._waiting[group]:
            self._turn[group] = request.arrival
        self._waiting[group] += 1

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._leave_queue(request)

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._turn.setdefault(self.group(request), request.arrival)
        self._waiting[self.group(request)] += 1

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        if not request.is_running:
            self._leave_queue(request)

    def _leave_queue(self, request: RequestView) -> None:
        group = self.group(request)
        self._waiting[group] -= 1
        if not self._waiting[group]:
            del self._waiting[group], self._turn[group]
