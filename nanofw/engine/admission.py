"""The prefill part of a step: chunks of requests already admitted, then new requests."""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import NO_MATCH
from nanofw.contracts.plan import NewRow
from nanofw.contracts.scheduler import Refuse
from nanofw.engine.journal import Blocker
from nanofw.engine.parts import Parts
from nanofw.engine.policy_guard import read_only
from nanofw.engine.request_state import RequestState
from nanofw.engine.running import Prefills
from nanofw.engine.waiting import QueueEntry
from nanofw.errors import NanofwError

RETRY_STEPS = 8
"""A head that did not fit is tried again when blocks were freed, and anyway after this many plans:
blocks that became shareable can make room without being freed."""


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A head that found no room: it is not looked at again before something changed."""

    state: RequestState
    num_available: int
    attempt: int


class Admission:
    """Fills the token budget of a step with prefill, in the policy's order."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._limits, self._running = parts, parts.limits, parts.running
        self._queue, self._guard = parts.queue, parts.guard
        self._allocator, self._counters = parts.allocator, parts.counters
        self._journal, self._why = parts.journal, Blocker.BLOCKS
        self._blocked: _Blocked | None = None
        self._no_room: RequestState | None = None  # the last request that found no blocks
        self._attempt = 0

    def allocator_error(self) -> NanofwError | None:
        """Blames the allocator, if it refused the head though it says that blocks are free."""
        state, allocator = self._no_room, self._allocator
        if state is None or self._guard.admits or len(self._running):
            return None
        needed = self._limits.blocks_for(len(state.tokens))
        if needed > allocator.num_available:
            return None
        return allocator.error(
            f"acquire() gives no blocks to {state.view!r}, which needs {needed}, though "
            f"num_available says that there are {allocator.num_available} of "
            f"{self._limits.num_blocks}"
        )

    def skip_plans(self, count: int) -> None:
        """So many plans were made without a look at the queue."""
        self._attempt += count

    def fill(self, budget: int, *, closed: bool) -> Prefills | None:
        """Prefill of at most `budget` tokens; `closed`: no new request is admitted."""
        self._attempt += 1
        admits = self._worth_looking(closed)
        if not admits and not self._running.prefilling:
            return None
        part = Prefills()
        for row in list(self._running.prefilling):
            if budget > 0 and not self._running.rows.paused[row]:
                budget -= self._continue(row, budget, part)
        if admits and budget > 0:
            self._admit(budget, part)
        elif admits:
            self._journal.block(Blocker.BUDGET)
        return part if part.rows else None

    def _continue(self, row: int, budget: int, part: Prefills) -> int:
        rows = self._running.rows
        state, computed = rows.state(row), int(rows.computed[row])
        left = int(rows.planned[row]) - computed
        count = min(left, self._chunk_limit(state, budget))
        self._count_recomputed(state, computed, count)
        if count == left:
            self._running.end_prefill(row)
        part.add_row(row, count)
        return count

    def _chunk_limit(self, state: RequestState, budget: int) -> int:
        limit = min(self._limits.chunk_tokens or budget, budget)
        self._guard.view.budget = budget
        chunk = self._guard.chunk(state)
        return limit if chunk is None else min(limit, chunk)

    def _worth_looking(self, closed: bool) -> bool:
        """A row is free, and something changed since the head found no room."""
        if not len(self._queue):
            self._journal.blocker = self._journal.head = None
            return False
        if closed or not self._running.rows.free:
            self._journal.block(Blocker.BLOCKS if closed else Blocker.ROW)
            return False
        blocked = self._blocked
        if blocked is None or self._attempt - blocked.attempt >= RETRY_STEPS:
            return True
        if self._allocator.num_available > blocked.num_available:
            return True
        entry = self._queue.peek()
        if entry is None or entry.state is not blocked.state:
            return True
        self._journal.block(Blocker.BLOCKS, blocked.state)
        return False

    def _admit(self, budget: int, part: Prefills) -> None:
        """Start waiting requests until the head does not fit, nor `skip_ahead` after it."""
        policy = self._guard.policy
        window = self._window() if policy.window > 0 else None
        passed: list[QueueEntry] = []
        self._blocked = self._no_room = None
        self._journal.block(None)
        try:
            while budget > 0 and self._running.rows.free and len(passed) <= policy.skip_ahead:
                entry = self._next(window)
                if entry is None:
                    break
                passed.append(entry)
                count = self._start(entry.state, budget, part)
                if count is None:
                    if len(passed) == 1:
                        self._journal.block(self._why, entry.state)
                    continue  # it stays, and those behind it may be tried
                passed.pop()
                budget -= count
        finally:
            self._note_blocked(passed, window)
            for entry in passed + (window or []):
                self._queue.push_back(entry)
        if not passed and len(self._queue):
            self._journal.block(self._end_of_admission(budget))

    def _end_of_admission(self, budget: int) -> Blocker:
        """Why those behind the last admitted request wait."""
        if budget <= 0:
            return Blocker.BUDGET
        return Blocker.POLICY if self._running.rows.free else Blocker.ROW

    def _note_blocked(self, passed: list[QueueEntry], window: list[QueueEntry] | None) -> None:
        plain = window is None and not self._guard.admits and not self._guard.policy.skip_ahead
        if plain and passed and self._no_room is not None:
            available = self._allocator.num_available
            self._blocked = _Blocked(passed[0].state, available, self._attempt)

    def _next(self, window: list[QueueEntry] | None) -> QueueEntry | None:
        if window is None:
            return self._queue.pop()
        return window.pop(0) if window else None

    def _window(self) -> list[QueueEntry]:
        """The first `window` requests in the order of their keys in the window."""
        entries: list[QueueEntry] = []
        size = self._guard.policy.window
        while len(entries) < size and (entry := self._queue.pop()) is not None:
            entries.append(entry)
        self._guard.view.budget = self._limits.max_num_batched_tokens
        try:
            keys = self._guard.window_keys([entry.state for entry in entries])
            kept = [i for i, key in enumerate(keys) if type(key) is not Refuse]
            kept = self._guard.call(
                "window_key",
                lambda: sorted(kept, key=lambda i: (keys[i], entries[i].state.queue_key)),
            )
        except BaseException:
            for entry in entries:
                self._queue.push_back(entry)
            raise
        for entry, key in zip(entries, keys, strict=True):
            if type(key) is Refuse:
                self._parts.shed(entry.state, key)
        ordered = [entries[i] for i in kept]
        self._journal.note_window([entry.state for entry in ordered])
        return ordered

    def _start(self, state: RequestState, budget: int, part: Prefills) -> int | None:
        """Admit a waiting request: the tokens that it computes in this step.

        0 if the policy refused it, None if it stays in the queue.
        """
        self._guard.view.budget = budget
        answer = self._guard.admit(state)
        if type(answer) is Refuse:
            self._parts.shed(state, answer)
            return 0
        self._why = Blocker.POLICY
        return self._take_row(state, budget, part) if answer else None

    def _take_row(self, state: RequestState, budget: int, part: Prefills) -> int | None:
        tokens = state.tokens
        # The last token is always computed: its logits are what the request waits for.
        is_whole = state.needs_whole_prompt
        match = NO_MATCH if is_whole else self._allocator.match(tokens[:-1], state.salt)
        left = len(tokens) - match.num_tokens
        count = min(left, self._chunk_limit(state, budget))
        partial = count < left
        if partial and len(self._running.prefilling) >= self._limits.max_partial_prefills:
            self._why = Blocker.PREFILL
            return None
        taken = self._allocator.acquire(self._running.rows.free[-1], tokens, match, state.salt)
        if taken is None:
            self._no_room, self._why = state, Blocker.BLOCKS
            return None
        row = self._running.add_request(state, match.num_tokens)
        self._count_start(state, match.num_tokens, count)
        part.add_row(row, count)
        part.new.append(_new_row(state, row, tokens, taken.block_ids))
        if len(taken.copies):
            part.copies.append(taken.copies)
        if partial:
            self._running.begin_prefill(row)
        self._guard.on_start(row, state)
        return count

    def _count_start(self, state: RequestState, num_cached: int, count: int) -> None:
        """Hits of a returning request are recovered work, not hits of the prefix cache."""
        counters = self._counters
        if state.num_preemptions:
            state.num_recovered += num_cached
            counters.num_recovered_tokens += num_cached
            self._count_recomputed(state, num_cached, count)
            return
        state.scheduled, state.num_cached = self._guard.view.now, num_cached
        counters.num_prompt_tokens += state.num_prompt
        counters.num_cached_tokens += num_cached

    def _count_recomputed(self, state: RequestState, start: int, count: int) -> None:
        """Tokens below what the request had computed before its last preemption."""
        if state.num_preemptions:
            again = max(0, min(start + count, state.num_computed_before) - start)
            state.num_recomputed += again
            self._counters.num_recomputed_tokens += again


def _new_row(state: RequestState, row: int, tokens: IntArray, table: IntArray) -> NewRow:
    return NewRow(
        row=row,
        request_id=state.sample_id,
        token_ids=read_only(tokens),
        num_prompt_tokens=state.num_prompt,
        block_ids=table,
        sampling=state.request.sampling,
        seed=state.seed,
        sample_index=state.sample_index,
        arguments=state.request.arguments,
        pooling=None if state.sample_index else state.request.pooling,
    )
