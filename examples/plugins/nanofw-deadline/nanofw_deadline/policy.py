"""Earliest deadline first, with amends: a client that was served late is served earlier next."""

from __future__ import annotations

from collections import OrderedDict
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


class DeadlineOptions(Options):
    """`scheduler: {name: deadline, ...}`."""

    default_slack_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    """Deadline of requests without one, in seconds after their arrival."""
    amends: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """How many seconds a client's requests move forward for each second by which it was late on
    average; 0: plain deadline order."""
    memory: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Weight of a client's last request in its average lateness."""
    max_clients: Annotated[int, Field(ge=1)] = 1000
    """Clients that are remembered; beyond, those that finished least recently are forgotten."""


class Deadline(Policy):
    """Ranks a request by its deadline, less what its client is owed.

    The average lateness of a client is an exponential mean over its finished requests, zero for
    one that was in time. It is read when a request is queued, so a key never changes while its
    request waits.

    Attributes:
        num_met, num_missed: finished requests by whether their deadline was met.
    """

    def __init__(self, options: DeadlineOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(options, config)
        self.num_met = self.num_missed = 0
        self._options = options
        self._lateness: OrderedDict[str, float] = OrderedDict()

    def key(self, request: RequestView, view: SchedulerView) -> float:
        """The deadline, moved forward by the client's amends; in seconds on the engine's clock."""
        return self.deadline(request) - self._options.amends * self.lateness(request.client)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        """Learn how late the request was; a request that was never served is not counted."""
        if not reason.is_served:
            return
        late = max(0.0, view.now - self.deadline(request))
        self.num_missed += late > 0
        self.num_met += late == 0
        weight = self._options.memory
        self._lateness[request.client] = weight * late + (1 - weight) * self.lateness(
            request.client
        )
        self._lateness.move_to_end(request.client)
        if len(self._lateness) > self._options.max_clients:
            self._lateness.popitem(last=False)

    def deadline(self, request: RequestView) -> float:
        """When the request should be finished, in seconds on the engine's clock."""
        if request.deadline is not None:
            return request.deadline
        return request.arrival + self._options.default_slack_s

    def lateness(self, client: str) -> float:
        """Seconds by which the client's requests were late, on average; 0: none is known."""
        return self._lateness.get(client, 0.0)
