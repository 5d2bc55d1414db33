"""What policies see of the engine: implements `SchedulerView` and `RunningView`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nanofw.core.contracts.policy import RequestView
from nanofw.core.state import StateView
from nanofw.core.types import IntArray
from nanofw.errors import PolicyError

if TYPE_CHECKING:
    from nanofw.core.scheduler import Scheduler


class EngineView:
    """The scheduler's numbers, read when asked for. One object, valid during a policy call."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.now = 0.0
        self.budget = 0

    @property
    def num_blocks(self) -> int:
        return self._scheduler.limits.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.allocator.num_available

    @property
    def block_size(self) -> int:
        return self._scheduler.limits.block_size

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def max_num_seqs(self) -> int:
        return self._scheduler.limits.max_num_seqs

    @property
    def running(self) -> Running:
        return Running(self._scheduler)

    def cached_tokens(self, request: RequestView) -> int:
        tokens = self._scheduler.state_of(_id(request)).tokens
        return self._scheduler.allocator.match(tokens[:-1]).num_tokens

    def blocks_needed(self, request: RequestView) -> int:
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        return -(-num_tokens // self.block_size)


class Running:
    """The running requests at the time of the call."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._rows = scheduler.rows
        self._block_size = scheduler.limits.block_size
        alive = np.flatnonzero(self._rows.alive)
        self._ordered = alive[np.argsort(scheduler.admitted[alive], kind="stable")].astype(np.int32)

    @property
    def rows(self) -> IntArray:
        return self._ordered

    @property
    def num_tokens(self) -> IntArray:
        return self._rows.planned[self._ordered]

    @property
    def num_blocks(self) -> IntArray:
        # A row owns blocks for all tokens that it had on admission, whatever was computed.
        tokens = np.maximum(self._rows.computed, self._rows.known)[self._ordered]
        return -(-tokens // self._block_size)

    def request(self, row: int) -> StateView:
        return self._rows.state(row).view

    def key(self, row: int) -> Any:
        return self._rows.state(row).rank[0]


def _id(request: RequestView) -> str:
    if not isinstance(request, StateView):
        raise PolicyError(f"{request!r} is not a request that this engine handed out")
    return request.id
