"""What policies see of the engine: implements `SchedulerView` and `RunningView`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import CountsMatches, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.scheduler import RequestView
from nanofw.engine.request_state import StateView
from nanofw.engine.running import RunningSet
from nanofw.engine.waiting import WaitingQueue
from nanofw.errors import PolicyError


class EngineView:
    """The scheduler's numbers, read when asked for. One object, valid during a policy call."""

    def __init__(
        self, limits: Limits, running: RunningSet, queue: WaitingQueue, allocator: KVAllocator
    ) -> None:
        self._limits, self._running = limits, running
        self._queue, self._allocator = queue, allocator
        self._counts = allocator if isinstance(allocator, CountsMatches) else None
        self.now = 0.0
        self.budget = 0

    @property
    def num_blocks(self) -> int:
        return self._limits.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._allocator.num_available

    @property
    def block_size(self) -> int:
        return self._limits.block_size

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def max_num_seqs(self) -> int:
        return self._limits.max_num_seqs

    @property
    def running(self) -> Running:
        return Running(self._running, self._limits)

    def cached_tokens(self, request: RequestView) -> int:
        if not isinstance(request, StateView):
            raise PolicyError(f"{request!r} is not a request that this engine handed out")
        tokens = request.known_tokens[:-1]
        if self._counts is not None:
            return self._counts.num_cached_tokens(tokens)
        return self._allocator.match(tokens).num_tokens

    def blocks_needed(self, request: RequestView) -> int:
        return self._limits.blocks_for(request.num_prompt_tokens + request.num_output_tokens)


class Running:
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
        return self._rows.state(row).view

    def key(self, row: int) -> Any:
        return self._rows.state(row).queue_key[0]
