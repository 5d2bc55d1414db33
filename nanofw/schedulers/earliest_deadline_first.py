"""Earliest deadline first; what is late already waits for what can still be in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import NonNegativeFloat, PositiveInt

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class EarliestDeadlineFirstOptions(Options):
    """`scheduler: {name: earliest_deadline_first, ...}`."""

    default_slack_s: NonNegativeFloat | None = None
    """The deadline of a request that does not state one, in seconds after its arrival; null: such
    requests come last."""
    demote_late: bool = True
    """true: requests whose deadline has passed come after requests that can still meet their
    deadline. If requests were served only by deadline under overload, requests that are already
    late would come first, and all requests would become late."""
    window: PositiveInt = 32
    """How many of the first waiting requests are checked for lateness in each step that admits."""


class EarliestDeadlineFirst(Policy):
    """Orders by deadline; with `demote_late`, late ones of the first `window` come last."""

    def __init__(
        self, options: EarliestDeadlineFirstOptions, config: SchedulerConfig | None = None
    ) -> None:
        super().__init__(options, config)
        self._slack = options.default_slack_s
        self.window: int = options.window if options.demote_late else 0

    def key(self, request: RequestView, view: SchedulerView) -> float:
        if request.deadline is not None:
            return request.deadline
        return math.inf if self._slack is None else request.arrival + self._slack

    def window_key(
        self, requests: Sequence[RequestView], view: SchedulerView
    ) -> Sequence[tuple[bool, float]]:
        deadlines = [self.key(request, view) for request in requests]
        return [(deadline < view.now, deadline) for deadline in deadlines]
