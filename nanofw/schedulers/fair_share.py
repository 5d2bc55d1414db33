"""Fair share: each client gets its weight's share of the tokens, however many requests others send.

The virtual token counter of Sheng et al. (OSDI 2024, arXiv 2401.00588): a client is charged its
prompt when a request starts and each token that it generates; the client that was served least
comes next. Work-conserving, and an idle client earns nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

from pydantic import Field, PositiveFloat

from nanofw.plugins import Options, RequestView, SchedulerConfig, SchedulerView
from nanofw.schedulers.service import WeightedService


class FairShareOptions(Options):
    """`scheduler: {name: fair_share, ...}`."""

    weights: dict[str, PositiveFloat] = Field(default_factory=dict[str, float])
    """Shares by client; a client that is not named has 1."""
    input_weight: PositiveFloat = 1.0
    """What a prompt token costs its client."""
    output_weight: PositiveFloat = 2.0
    """What a generated token costs its client."""


class FairShare(WeightedService):
    """One queue per client, in order of arrival; the least served client is next."""

    def __init__(self, options: FairShareOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(
            options,
            config,
            input_cost=options.input_weight,
            output_cost=options.output_weight,
        )
        self._weights = options.weights

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def group(self, request: RequestView) -> str:
        return request.client

    def weight(self, group: Hashable) -> float:
        return self._weights.get(str(group), 1.0)
