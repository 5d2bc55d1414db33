"""What policies see of the engine: the views of the contract over the engine's own state."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.limits import Limits
from nanofw.contracts.scheduler import RequestView, RunningView, SchedulerView, SortKey
from nanofw.engine.checked_allocator import CheckedAllocator
from nanofw.engine.request_state import RequestState, StateView
from nanofw.engine.running import RunningSet
from nanofw.errors import PolicyError


class EngineView(SchedulerView):
    """The scheduler's numbers, read when asked for. One object, valid during a policy call.

    Attributes:
        queue: the waiting requests.
    """

    __slots__ = ("_allocator", "_running", "queue")

    def __init__(self, limits: Limits, running: RunningSet, allocator: CheckedAllocator) -> None:
        super().__init__(limits)
        self._running, self._allocator = running, allocator
        self.queue: Sized = ()

    @property
    def num_free_blocks(self) -> int:
        return self._allocator.num_available

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_decoding(self) -> int:
        return self._running.num_decoding

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def running(self) -> EngineRunning:
        return EngineRunning(self._running, self.limits)

    def cached_tokens(self, request: RequestView) -> int:
        state = _state_of(request)
        return self._allocator.num_cached_tokens(state.tokens[:-1], state.salt)

    def blocks_to_take(self, request: RequestView) -> int:
        return self._allocator.num_taken_by(_state_of(request))

    def blocks_needed(self, request: RequestView) -> int:
        if request.row is None:
            return super().blocks_needed(request)
        return self._running.num_blocks_of(request.row, self.limits.block_size)


def _state_of(request: RequestView) -> RequestState:
    if not isinstance(request, StateView):
        raise PolicyError(f"{request!r} is not a request that this engine handed out")
    return request.state


class EngineRunning(RunningView):
    """The running requests at the time of the call; sorted when first asked for."""

    def __init__(self, running: RunningSet, limits: Limits) -> None:
        self._running, self._rows, self._limits = running, running.rows, limits
        self._ordered: IntArray | None = None

    @property
    def rows(self) -> IntArray:
        if self._ordered is None:
            alive = np.flatnonzero(self._rows.alive)
            order = np.argsort(self._running.admitted[alive], kind="stable")
            self._ordered = alive[order].astype(np.int32)
            self._ordered.flags.writeable = False
        return self._ordered

    @property
    def num_tokens(self) -> IntArray:
        return self._rows.planned[self.rows]

    @property
    def num_blocks(self) -> IntArray:
        # A row owns blocks for all tokens that it had on admission, whatever was computed.
        tokens = np.maximum(self._rows.computed, self._rows.known)[self.rows]
        return -(-tokens // self._limits.block_size)

    def request(self, row: int) -> StateView:
        return self._state(row).view

    def key(self, row: int) -> SortKey:
        return self._state(row).queue_key[0]

    def _state(self, row: int) -> RequestState:
        if not 0 <= row < len(self._rows.alive) or not self._rows.alive[row]:
            raise PolicyError(f"row {row!r} is not running")
        return self._rows.state(row)
