"""The running set: who has a row, who decodes, who is in the middle of a prefill."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, BoolArray, IntArray
from nanofw.contracts.kv_allocator import KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.engine.request_state import RequestState
from nanofw.engine.rows import Rows

NO_LIMIT = np.iinfo(np.int32).max


class RunningSet:
    """Rows and their blocks, from admission until the last step with them was collected.

    Attributes:
        rows: the arrays over all rows.
        admitted: int64[max_rows], number of the admission that filled each row.
        prefilling: rows in the middle of their prefill, in order of admission.
        decoding: int32[d], rows that decode, in order of admission; `ones` and `trues` are
            the plan's arrays over them, `host_rows` those that wait for host masks.
        starts: int32[d], positions that they compute next.
        steps_left: steps until the first of them has all the tokens that it may have.
        changed: the arrays over decoding rows are not those of the plan before.
        num_planned: plans made.
        collected: number of the last step that was committed.
        last_removal: `num_planned` when a request was last removed.
        version: grows when a request is added or removed.
    """

    def __init__(self, limits: Limits, allocator: KVAllocator) -> None:
        self._allocator = allocator
        self.rows = Rows(limits.max_rows, limits.max_model_len + 1)
        self.admitted = np.zeros(limits.max_rows, np.int64)
        self.prefilling: list[int] = []
        self.decoding: IntArray = EMPTY_INT
        self.ones: IntArray = EMPTY_INT
        self.trues: BoolArray = np.empty(0, np.bool_)
        self.host_rows: IntArray = EMPTY_INT
        self.starts: IntArray = EMPTY_INT
        self.steps_left = 0
        self.changed = True
        self.collected = -1
        self.num_planned = self.last_removal = 0
        self.version = 0
        self._num_alive = 0
        self.num_custom_stop = self.num_streams = self.num_host = self.num_logprobs = 0
        self.num_ending = 0  # rows that an end token ends
        self.num_unstarted = 0  # rows without a first token
        self._ones = np.ones(limits.max_rows, np.int32)
        self._trues = np.ones(limits.max_rows, np.bool_)
        self._ones.flags.writeable = self._trues.flags.writeable = False
        self._num_admitted = 0
        self._removed: list[int] = []
        self._held: list[int] = []  # rows of removed requests whose step is in flight

    def __len__(self) -> int:
        return self._num_alive

    @property
    def num_held_rows(self) -> int:
        """Rows of removed requests that the step in flight still holds."""
        return len(self._held)

    def states(self) -> list[RequestState]:
        """The running requests, by row."""
        return [self.rows.state(row) for row in np.flatnonzero(self.rows.alive).tolist()]

    def add_request(self, state: RequestState, num_cached: int) -> int:
        """Give a waiting request the next free row."""
        row = self.rows.assign(state, num_cached)
        self.admitted[row] = self._num_admitted
        self._num_admitted += 1
        self._count(row, 1)
        return row

    def remove_request(self, state: RequestState) -> None:
        """Stop the request; its row is released at once or when its step was collected."""
        row = state.row
        self._count(row, -1)
        self.rows.stop(row)
        if self.rows.prefilling[row]:
            self.end_prefill(row)
        self.changed = True
        self.last_removal = self.num_planned
        if self.rows.last_step[row] > self.collected:
            self._held.append(row)
        else:
            self._release(row)

    def begin_prefill(self, row: int) -> None:
        """The row's prefill goes on in a later step."""
        self.prefilling.append(row)
        self.rows.prefilling[row] = True

    def end_prefill(self, row: int) -> None:
        """The row's last chunk was planned, or its request was removed."""
        self.prefilling.remove(row)
        self.rows.prefilling[row] = False

    def refresh(self) -> None:
        """Rebuild the arrays over decoding rows, if requests came, went or reached their limit."""
        if not self.changed:
            return
        rows = self.rows
        # A row decodes when one token is left to compute and there is room for another.
        mask = rows.alive & (rows.planned - rows.computed == 1) & (rows.planned < rows.limit)
        found = (mask & ~rows.prefilling).nonzero()[0]
        found = found[self.admitted[found].argsort(kind="stable")]
        self.decoding = found.astype(np.int32)
        self.starts = rows.computed[found]
        self.steps_left = int((rows.limit[found] - rows.planned[found]).min(initial=NO_LIMIT))
        self.ones, self.trues = self._ones[: len(found)], self._trues[: len(found)]
        self.host_rows = self.decoding[rows.host[self.decoding]] if self.num_host else EMPTY_INT

    def take_removed(self) -> IntArray:
        """int32[r], rows released since the last plan."""
        if not self._removed:
            return EMPTY_INT
        removed = np.array(self._removed, np.int32)
        self._removed.clear()
        return removed

    def release_held(self, step: int) -> None:
        """A step was committed: release rows of removed requests that it was the last to hold."""
        if not self._held:
            return
        held = self.rows.last_step
        done = [row for row in self._held if held[row] <= step]
        self._held = [row for row in self._held if held[row] > step]
        for row in done:
            self._release(row)

    def _release(self, row: int) -> None:
        self._allocator.release(row)
        self.rows.release(row)
        self._removed.append(row)

    def _count(self, row: int, by: int) -> None:
        rows = self.rows
        self.version += 1
        self._num_alive += by
        self.num_custom_stop += by * int(rows.custom_stop[row])
        self.num_streams += by * int(rows.stream[row])
        self.num_host += by * int(rows.host[row])
        self.num_logprobs += by * int(rows.logprobs[row])
        self.num_ending += by * int(not rows.ignore_eos[row])
        self.num_unstarted += by * int(rows.no_token_yet[row])
