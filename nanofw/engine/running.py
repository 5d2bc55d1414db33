"""The running set: who has a row, who decodes, who is in the middle of a prefill; and the arrays
of a step's plan, which it makes while it moves its rows on."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, BoolArray, IntArray, LongArray
from nanofw.contracts.kv_allocator import Extension
from nanofw.contracts.limits import Limits
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.contracts.scheduler import SortKey
from nanofw.contracts.stride import Stride
from nanofw.engine.checked_allocator import CheckedAllocator
from nanofw.engine.request_state import RequestState
from nanofw.engine.rows import Rows

NO_LIMIT = np.iinfo(np.int32).max
NOTHING_ENDED: tuple[IntArray, tuple[str, ...]] = (EMPTY_INT, ())


class Prefills:
    """Rows of one plan that compute prompt tokens, and how many each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.new: list[NewRow] = []
        self.copies: list[IntArray] = []

    def add_row(self, row: int, count: int) -> None:
        self.rows.append(row)
        self.counts.append(count)

    def arrays(self) -> tuple[IntArray, IntArray]:
        """int32[p] rows and int32[p] token counts."""
        return np.array(self.rows, np.int32), np.array(self.counts, np.int32)


class RunningSet:
    """Rows and their blocks, from admission until the last step with them was collected.

    Everything here is changed by the methods below alone.

    Attributes:
        rows: the arrays over all rows.
        admitted: int64[max_rows], number of the admission that filled each row.
        prefilling: rows in the middle of their prefill, in order of admission.
        decoding: int32[d], rows that decode in the step being planned, in order of admission;
            `ones` and `trues` are the plan's arrays over them, `host_rows` those that wait for
            host masks.
        starts: int32[d], positions that they compute next.
        num_planned: plans made.
        collected: number of the last step that was committed.
        last_removal: `num_planned` when a request was last removed.
        version: grows when a request is added, removed, paused or gets another key.
    """

    def __init__(self, limits: Limits, allocator: CheckedAllocator) -> None:
        self._allocator = allocator
        self.rows: Rows = Rows(limits.max_rows, limits.max_model_len + 1)
        self.admitted: LongArray = np.zeros(limits.max_rows, np.int64)
        self.prefilling: list[int] = []
        self.decoding: IntArray = EMPTY_INT
        self.ones: IntArray = EMPTY_INT
        self.trues: BoolArray = np.empty(0, np.bool_)
        self.host_rows: IntArray = EMPTY_INT
        self.starts: IntArray = EMPTY_INT
        self.collected: int = -1
        self.num_planned: int = 0
        self.last_removal: int = 0
        self.version: int = 0
        self.num_custom_stop: int = 0
        self.num_streams: int = 0
        self.num_host: int = 0
        self.num_logprobs: int = 0
        self.num_ending: int = 0  # rows that an end token ends
        self.num_unstarted: int = 0  # rows without a first token
        self._num_alive = 0
        self._num_admitted = 0
        self._steps_left = 0  # until the first decoding row has all the tokens that it may have
        self._changed = True  # the arrays over decoding rows are not those of the plan before
        self._is_cut = False  # some rows that could decode are left out
        self._paused: list[int] = []
        self._ones = np.ones(limits.max_rows, np.int32)
        self._trues = np.ones(limits.max_rows, np.bool_)
        self._ones.flags.writeable = self._trues.flags.writeable = False
        self._removed: list[int] = []
        self._finished: list[str] = []  # ids of requests that had a row
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
        self._allocator.check_room(row, int(self.rows.computed[row]))
        self._count(row, -1)
        self.rows.stop(row)
        if self.rows.prefilling[row]:
            self.end_prefill(row)
        if row in self._paused:
            self._paused.remove(row)
        self._changed = True
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

    def pause(self, rows: list[int]) -> None:
        """Leave these rows, and no others, out of the step being planned."""
        rows = sorted(set(rows))
        if rows != self._paused:
            self.rows.paused[self._paused] = False
            self.rows.paused[rows] = True
            self._paused = rows
            self._changed = True
            self.version += 1

    @property
    def has_paused(self) -> bool:
        return bool(self._paused)

    def set_key(self, state: RequestState, key: SortKey) -> None:
        """The policy gave a running request another key."""
        state.queue_key = (key, *state.queue_key[1:])
        self.version += 1

    @property
    def num_decoding(self) -> int:
        """Rows that could decode in the step being planned."""
        return len(self._decodable()) if self._changed else len(self.decoding)

    def num_blocks_of(self, row: int, block_size: int) -> int:
        """Blocks that a running row owns."""
        tokens = max(int(self.rows.computed[row]), int(self.rows.known[row]))
        return -(-tokens // block_size)

    def _decodable(self) -> IntArray:
        """int64[d], rows with one token left to compute and room for another."""
        rows = self.rows
        mask = rows.alive & (rows.planned - rows.computed == 1) & (rows.planned < rows.limit)
        return (mask & ~rows.prefilling & ~rows.paused).nonzero()[0]

    def refresh(self, most: int = NO_LIMIT) -> None:
        """Rebuild the arrays over decoding rows where they changed; at most `most` rows."""
        if not self._changed and len(self.decoding) <= most:
            return
        rows = self.rows
        found = self._decodable()
        found = found[self.admitted[found].argsort(kind="stable")]
        self._is_cut = len(found) > most
        found, self._changed = found[:most], True
        self.decoding = found.astype(np.int32)
        self.starts = rows.computed[found]
        self._steps_left = int((rows.limit[found] - rows.planned[found]).min(initial=NO_LIMIT))
        self.ones, self.trues = self._ones[: len(found)], self._trues[: len(found)]
        self.host_rows = self.decoding[rows.host[self.decoding]] if self.num_host else EMPTY_INT

    def plan_decodes(self, given: Extension) -> StepPlan:
        """The plan of a step in which the decoding rows run alone.

        They move on by one token, as if the step were done.

        Args:
            given: blocks that the rows got for this step.
        """
        rows, starts, is_same = self.rows, self.starts, not self._changed
        self.starts = ends = starts + 1
        rows.computed[self.decoding] = ends
        rows.planned[self.decoding] = ends + 1  # one token was left, one more is sampled
        rows.last_step[self.decoding] = self.num_planned
        self._steps_left -= 1
        self._changed = self._steps_left <= 0 or self._is_cut
        return StepPlan(
            step=self.num_planned,
            rows=self.decoding,
            num_tokens=self.ones,
            starts=starts,
            samples=self.trues,
            num_decodes=len(self.decoding),
            block_rows=given.rows,
            block_positions=given.positions,
            block_ids=given.block_ids,
            copies=given.copies,
            host_rows=self.host_rows,
            same_rows=is_same,
        )

    def plan_mixed(self, decoding: IntArray, given: Extension, prefills: Prefills) -> StepPlan:
        """The plan of a step with prefill. Its rows move on, as if the step were done.

        Args:
            decoding: int32[d], rows that decode in the same step.
            given: blocks that these rows got for this step.
        """
        rows, num_tokens = prefills.arrays()
        if len(decoding):
            rows = np.concatenate((decoding, rows))
            num_tokens = np.concatenate((self.ones, num_tokens))
        copies = given.copies
        if prefills.copies:
            copies = np.concatenate((copies, *prefills.copies))
        state = self.rows
        starts = state.computed[rows]
        ends = starts + num_tokens
        state.computed[rows] = ends
        samples = ends == state.planned[rows]
        state.planned[rows] += samples
        state.last_step[rows] = self.num_planned
        self._changed = True
        return StepPlan(
            step=self.num_planned,
            rows=rows,
            num_tokens=num_tokens,
            starts=starts,
            samples=samples,
            num_decodes=len(decoding),
            block_rows=given.rows,
            block_positions=given.positions,
            block_ids=given.block_ids,
            copies=copies,
            host_rows=rows[samples & state.host[rows]] if self.num_host else EMPTY_INT,
            new=prefills.new,
        )

    @property
    def num_steady_steps(self) -> int:
        """Steps after the last plan in which its rows decode alone and no row can end.

        0 where a row waits for more than its next token: for its end, masks, a stream.
        """
        if self._changed or self._removed or self._finished or self._held:
            return 0
        watched = self.num_custom_stop + self.num_ending + self.num_host + self.num_unstarted
        if watched or self.num_streams or self.num_logprobs:
            return 0
        return self._steps_left - 1 if len(self.decoding) == self._num_alive else 0

    def stride(self, stride: Stride) -> None:
        """Move the decoding rows on by the steps of a stride, and keep their tokens."""
        rows, decoding, count = self.rows, self.decoding, len(stride)
        known = rows.known[decoding]
        further = np.arange(count, dtype=np.int32)[:, None]
        rows.tokens[decoding, known + further] = stride.token_ids
        rows.known[decoding] = known + count
        self.starts = starts = self.starts + count
        rows.computed[decoding] = starts
        rows.planned[decoding] = starts + 1
        self.num_planned += count
        rows.last_step[decoding] = self.num_planned - 1
        self.collected += count
        self._steps_left -= count

    def close_plan(self) -> tuple[IntArray, tuple[str, ...]]:
        """Count a plan. Returns what it carries: int32[r], rows released since the last plan, and
        the ids of requests that ended since then."""
        self.num_planned += 1
        if not self._removed and not self._finished:
            return NOTHING_ENDED
        ended = np.array(self._removed, np.int32), tuple(self._finished)
        self._removed.clear()
        self._finished.clear()
        return ended

    def note_collected(self, step: int) -> None:
        """A step is being committed."""
        self.collected = step

    def note_started(self, count: int) -> None:
        """So many rows have their first token now."""
        self.num_unstarted -= count

    def note_finished(self, state: RequestState) -> None:
        """A request ended, in whatever state it was."""
        if state.scheduled is not None:  # else the executor never heard of it
            self._finished.append(state.sample_id)

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
        if rows.custom_stop[row]:
            self.num_custom_stop += by
        if rows.stream[row]:
            self.num_streams += by
        if rows.host[row]:
            self.num_host += by
        if rows.logprobs[row]:
            self.num_logprobs += by
        if not rows.ignore_eos[row]:
            self.num_ending += by
        if rows.no_token_yet[row]:
            self.num_unstarted += by
