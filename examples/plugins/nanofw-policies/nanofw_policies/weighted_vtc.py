"""Weighted virtual token counters (Sheng et al., OSDI 2024, arXiv 2401.00588)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from pydantic import Field

from nanofw.plugins import (
    FinishReason,
    IntArray,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)


class WeightedVTCOptions(Options):
    """`scheduler: {name: weighted_vtc, ...}`."""

    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Share of each client; a client that is not named has 1."""
    input_cost: float = 1.0
    """What a prompt token costs its client."""
    output_cost: float = 2.0
    """What a generated token costs its client."""


class WeightedVTC(Policy):
    """The client with the smallest counter is next; a counter grows with weighted service.

    A client that returns is lifted to the smallest counter of the clients that wait, or to the
    counter of the client that left last: an idle client does not save up service.
    """

    def __init__(self, options: WeightedVTCOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._options = options
        self._counters: dict[Hashable, float] = {}
        self._waiting: Counter[str] = Counter()
        self._clients: dict[int, str] = {}  # by row
        self._last = 0.0

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def group(self, request: RequestView) -> str:
        return request.client

    def group_key(self, group: Hashable, view: SchedulerView) -> float:
        return self._counters[group]

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        client = request.client
        if not self._waiting[client]:
            others = [self._counters[name] for name, count in self._waiting.items() if count]
            lifted = min(others, default=self._last)
            self._counters[client] = max(self._counters.get(client, 0.0), lifted)
        self._waiting[client] += 1

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        client = self._clients[row] = request.client
        if not request.num_preemptions:
            self._charge(client, self._options.input_cost * request.num_prompt_tokens)
        self._leave_queue(client)

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._waiting[request.client] += 1

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        for row in rows[:num_decodes].tolist():
            self._charge(self._clients[row], self._options.output_cost)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        if not request.is_running:
            self._leave_queue(request.client)

    def _charge(self, client: str, cost: float) -> None:
        self._counters[client] += cost / self._options.weights.get(client, 1.0)

    def _leave_queue(self, client: str) -> None:
        self._waiting[client] -= 1
        self._last = self._counters[client]
