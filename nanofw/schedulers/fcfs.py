"""First come, first served."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class FcfsOptions(Options):
    """`scheduler: {name: fcfs, ...}`."""

    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of the KV pool that an admission must leave free, so that the running requests can grow
    for a while before one of them is preempted. 0: nothing is left free."""


class Fcfs(Policy):
    """Serves requests in the order of their arrival; no request overtakes another."""

    def __init__(self, options: FcfsOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(options, config)
        self._watermark = options.watermark

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        """An empty engine admits every request; otherwise the watermark has to stay free."""
        if not self._watermark or not view.num_running:
            return True
        spare = view.num_free_blocks - self._watermark * view.num_blocks
        return view.blocks_needed(request) <= spare or view.blocks_to_take(request) <= spare
