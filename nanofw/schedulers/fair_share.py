"""Fair share: each client gets its weight's share of the tokens, however many requests others send.

The virtual token counter of Sheng et al. (OSDI 2024, arXiv 2401.00588): a client is charged its
prompt when a request starts and each token that it generates; the client that was served least
comes next. Work-conserving, and an idle client earns nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from pydantic import Field, PositiveFloat

from nanofw.plugins import (
    FinishReason,
    Options,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)
from nanofw.schedulers.service import WeightedService


class FairShareOptions(Options):
    """`scheduler: {name: fair_share, ...}`."""

    weights: dict[str, PositiveFloat] = Field(default_factory=dict[str, float])
    """Shares by client; a client that is not named has 1."""
    input_weight: PositiveFloat = 1.0
    """What a prompt token costs its client."""
    output_weight: PositiveFloat = 2.0
    """What a generated token costs its client."""
    preempt: bool = False
    """true: if a client has fewer running requests than its share, a request of another client is
    preempted. It is the last request of the client that has the most running requests in proportion
    to its weight. false: the client waits until a request ends."""


class FairShare(WeightedService):
    """One queue per client, in order of arrival; the least served client is next.

    With `preempt`, one running request at a time has a greater key than all others: it gives way
    when a client waits that has fewer running requests, for its weight, even with one more.
    """

    max_rekeys: int = 2

    def __init__(self, options: FairShareOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(
            options,
            config,
            input_cost=options.input_weight,
            output_cost=options.output_weight,
        )
        self._weights, self._preempts = options.weights, options.preempt
        self._leaves: RequestView | None = None
        """Who gives way if there is no room for the next request."""

    def key(self, request: RequestView, view: SchedulerView) -> tuple[bool, float]:
        return request is self._leaves, request.arrival

    def group(self, request: RequestView) -> str:
        return request.client

    def weight(self, group: Hashable) -> float:
        return self._weights.get(str(group), 1.0)

    def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
        if not self._preempts:
            return ()
        before, self._leaves = self._leaves, self.request_over_share(view)
        if before is self._leaves:
            return ()
        return [request for request in (before, self._leaves) if request is not None]

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        """Nobody but the request that `rekey` chose; the core chooses where blocks are short."""
        if for_request is None or self._leaves is None:
            return None
        return self._leaves.row

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._forget(request)
        super().on_preempt(row, request, view)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self._forget(request)
        super().on_finish(request, reason, view)

    def _forget(self, request: RequestView) -> None:
        if request is self._leaves:
            self._leaves = None
