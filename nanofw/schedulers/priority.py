"""Priority classes, with ageing and, if wanted, preemption."""

from __future__ import annotations

from pydantic import NonNegativeFloat

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class PriorityOptions(Options):
    """`scheduler: {name: priority, ...}`."""

    ageing: NonNegativeFloat = 0.0
    """Priority levels that each second of waiting is worth. 0: low classes may starve."""
    preempt: bool = False
    """Whether a waiting request that does not fit may push out a running one of lower priority."""


class Priority(Policy):
    """Serves the smallest `priority` first; among equals the preempted, then the earlier."""

    def __init__(self, options: PriorityOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(options, config)
        self._options = options

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.priority + self._options.ageing * request.arrival

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        """For a waiting request: the greatest key, the last admitted among equals."""
        if for_request is None or not self._options.preempt:
            return None
        running = view.running
        latest_first = running.rows[::-1].tolist()
        return max(latest_first, key=running.key)
