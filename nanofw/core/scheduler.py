"""Who runs in a step, how many tokens each computes, and who gives way.

The policy proposes, the scheduler disposes: it owns queues, budgets, chunking, the composition
of a step, the accounting of blocks, preemption and the order of events. It is the one writer
of request states. A step is `plan` (down) and `commit` (up); with overlap, step k + 1 is
planned while step k is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from nanofw.core.contracts.kv_allocator import Extension, KVAllocator
from nanofw.core.contracts.policy import Policy, check_chunk
from nanofw.core.plan import EMPTY_COPIES, EMPTY_INT, NewRow, StepPlan, StepResult
from nanofw.core.state import RequestState, Rows, Status
from nanofw.core.types import (
    BoolArray,
    FinishReason,
    IntArray,
    RequestOutput,
    TokenDelta,
)
from nanofw.core.views import EngineView, Running
from nanofw.core.waiting import Entry, WaitingQueue
from nanofw.errors import AllocatorError, PolicyError

T = TypeVar("T")

RETRY_STEPS = 8
"""A head that did not fit is tried again when blocks were freed, and anyway after so many plans:
blocks that became shareable can make room without being freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a step, resolved.

    Attributes:
        max_num_seqs: requests running at once.
        max_num_batched_tokens: tokens in a step.
        max_model_len: tokens of a request, prompt included.
        chunk_tokens: longest prefill chunk of one request; None: the step's budget.
        max_partial_prefills: requests that may be left in the middle of their prefill.
        prefill_first: a step is all prefill or all decode; otherwise both mix.
        num_blocks, block_size: of the pool.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    chunk_tokens: int | None = None
    max_partial_prefills: int = 1
    prefill_first: bool = False

    @property
    def max_rows(self) -> int:
        """Rows that a step can hold when each decodes one token."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def pool_tokens(self) -> int:
        return self.num_blocks * self.block_size


class Wait(Enum):
    """Room is short, and only a step that is not in flight may lose a row."""

    FOR_STEP_IN_FLIGHT = 1


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made.

    Attributes:
        num_prompt_tokens: of requests that were started.
        num_cached_tokens: of them, found in the prefix cache at first admission.
        num_recovered_tokens: of preempted requests, found in the cache on their return.
        num_recomputed_tokens: computed again after a preemption.
        num_output_tokens: of finished requests.
        num_waits: plans that had to wait for the step in flight.
        num_failed_rows: rows whose logits were not finite.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_recovered_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_waits: int = 0
    num_failed_rows: int = 0


@dataclass(slots=True)
class _Prefills:
    """The prefill part of the plan being made."""

    rows: list[int]
    num_tokens: list[int]
    new: list[NewRow]


@dataclass(slots=True)
class Committed:
    """What a commit brought."""

    finished: list[RequestOutput]
    deltas: list[TokenDelta]


class Scheduler:
    """Queues, rows and plans. See the module's first lines."""

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        allocator: KVAllocator,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.limits = limits
        self.allocator = allocator
        self.policy = policy
        self.counters = Counters()
        self.rows = Rows(limits.max_rows, limits.max_model_len + 1)
        self.admitted = np.zeros(limits.max_rows, np.int64)
        self._eos = eos_token_ids
        self._states: dict[str, RequestState] = {}
        self._queue = WaitingQueue(policy)
        self._view = EngineView(self)
        self._preempts_for_waiting = type(policy).victim is not Policy.victim
        self._admits = type(policy).admit is not Policy.admit
        self._chunks = type(policy).chunk is not Policy.chunk
        self._hears_progress = type(policy).on_progress is not Policy.on_progress
        self._num_admitted = 0
        self._step = 0
        self._collected = -1  # number of the last step that was committed
        self._gave_up = False  # the plan being made preempted somebody for want of room
        # Decoding rows in order of admission, as the plan's arrays, rebuilt when they change.
        self._decoding: IntArray = EMPTY_INT
        self._ones: IntArray = EMPTY_INT
        self._trues: BoolArray = np.empty(0, np.bool_)
        self._host_rows: IntArray = EMPTY_INT
        self._changed = True
        self._prefilling: list[int] = []
        self._removed: list[int] = []
        self._leaving: list[int] = []  # rows of ended requests whose step is in flight
        self._num_custom_stop = self._num_streams = self._num_host = 0
        self._short = False  # the head did not fit for want of blocks
        self._blocked: tuple[RequestState, int, int] | None = None  # it, available blocks, step

    # -- requests -------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return int(np.count_nonzero(self.rows.alive))

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_requests(self) -> int:
        """Accepted and not finished."""
        return len(self._states)

    @property
    def num_leaving(self) -> int:
        """Rows of ended requests that the step in flight still holds."""
        return len(self._leaving)

    def has(self, request_id: str) -> bool:
        return request_id in self._states

    def state_of(self, request_id: str) -> RequestState:
        state = self._states.get(request_id)
        if state is None:
            raise PolicyError(f"request {request_id!r} is unknown or has finished")
        return state

    def add(self, state: RequestState, now: float) -> None:
        """Queue a validated request. Raises `PolicyError` when the policy fails on it."""
        self._call("on_arrival", self.policy.on_arrival, state.view, now)
        self._states[state.request.id] = state
        try:
            self._queue.push(state, now)
        except PolicyError:
            del self._states[state.request.id]
            state.status = Status.FINISHED
            refused = FinishReason.REFUSED
            self._call("on_finish", self.policy.on_finish, state.view, refused, now)
            raise

    def end(
        self,
        request_id: str,
        reason: FinishReason,
        now: float,
        *,
        error: str | None = None,
        num_tokens: int | None = None,
    ) -> RequestOutput | None:
        """End a request in whatever state it is; None when there is none of that id.

        Args:
            num_tokens: generated tokens to keep; None: all that were committed.
        """
        state = self._states.get(request_id)
        if state is None:
            return None
        if num_tokens is not None:
            self._truncate(state, state.num_prompt + num_tokens)
        return self._end(state, reason, now, error)

    def _truncate(self, state: RequestState, length: int) -> None:
        if state.status is Status.RUNNING:
            self.rows.known[state.row] = min(length, int(self.rows.known[state.row]))
        else:
            state.tokens = state.tokens[:length]
            state.num_output = len(state.tokens) - state.num_prompt

    def _end(
        self, state: RequestState, reason: FinishReason, now: float, error: str | None = None
    ) -> RequestOutput:
        if state.status is Status.RUNNING:
            self._drop_row(state)
            state.status = Status.FINISHED
        else:
            state.status = Status.FINISHED
            self._queue.forget(state)
        del self._states[state.request.id]
        state.finish_reason, state.error, state.finished = reason, error, now
        self.counters.num_output_tokens += state.num_output
        self._call("on_finish", self.policy.on_finish, state.view, reason, now)
        return state.output()

    def _drop_row(self, state: RequestState) -> None:
        """The request leaves its row; the row is freed at once, or when its step retires."""
        row, rows = state.row, self.rows
        self._num_custom_stop -= int(rows.custom_stop[row])
        self._num_streams -= int(rows.stream[row])
        self._num_host -= int(rows.host[row])
        rows.leave(row)
        if rows.prefilling[row]:
            self._end_prefill(row)
        self._changed = True
        if rows.last_step[row] > self._collected:
            self._leaving.append(row)
        else:
            self._free(row)

    def _end_prefill(self, row: int) -> None:
        self._prefilling.remove(row)
        self.rows.prefilling[row] = False

    def _free(self, row: int) -> None:
        self.allocator.release(row)
        self.rows.vacate(row)
        self._removed.append(row)

    # -- plan -----------------------------------------------------------------------------

    def plan(self, now: float, *, in_flight: bool) -> StepPlan | Wait | None:
        """The next step; None when nothing can run now.

        With a step in flight, `Wait` says that it must be collected before a row may be given
        up. Nothing has changed then, but for what the policy keeps of its own.
        """
        self._view.now = now
        self._gave_up = False
        if self._make_way(now, in_flight) is Wait.FOR_STEP_IN_FLIGHT:
            return Wait.FOR_STEP_IN_FLIGHT
        self._refresh_decoding()
        if self.limits.prefill_first:
            return self._plan_prefill_first(now, in_flight)
        extension = self._extend_decoding(now, in_flight)
        if extension is Wait.FOR_STEP_IN_FLIGHT:
            return Wait.FOR_STEP_IN_FLIGHT
        prefills = self._prefill(now, self.limits.max_num_batched_tokens - len(self._decoding))
        return self._build(self._decoding, extension, prefills)

    def _plan_prefill_first(self, now: float, in_flight: bool) -> StepPlan | Wait | None:
        prefills = self._prefill(now, self.limits.max_num_batched_tokens)
        if prefills is not None:
            return self._build(EMPTY_INT, None, prefills)
        extension = self._extend_decoding(now, in_flight)
        if extension is Wait.FOR_STEP_IN_FLIGHT:
            return Wait.FOR_STEP_IN_FLIGHT
        return self._build(self._decoding, extension, None)

    def _refresh_decoding(self) -> None:
        """Rebuild the arrays over decoding rows when rows came, left or ran to their limit."""
        if not self._changed:
            return
        rows = self.rows
        # A row decodes when one token is left to compute and there is room for another.
        mask = rows.alive & (rows.planned - rows.computed == 1) & (rows.planned < rows.limit)
        mask &= ~rows.prefilling
        found = np.flatnonzero(mask)
        order = np.argsort(self.admitted[found], kind="stable")
        self._decoding = found[order].astype(np.int32)
        self._ones = np.ones(len(found), np.int32)
        self._trues = np.ones(len(found), np.bool_)
        self._host_rows = self._decoding[rows.host[self._decoding]] if self._num_host else EMPTY_INT

    def _extend_decoding(self, now: float, in_flight: bool) -> Extension | Wait | None:
        """Blocks for one more token in each decoding row; victims give up theirs if need be."""
        while len(self._decoding):
            rows = self._decoding
            extension = self.allocator.extend(rows, self.rows.computed[rows] + 1)
            if extension is not None:
                return extension
            if in_flight:
                return Wait.FOR_STEP_IN_FLIGHT
            self._check_not_alone()
            self._preempt(self._victim_for_room(), now)
            self._gave_up = True
            self._refresh_decoding()
        return None

    def _build(
        self, decoding: IntArray, extension: Extension | None, prefills: _Prefills | None
    ) -> StepPlan | None:
        rows, state = decoding, self.rows
        num_decodes = len(decoding)
        same = prefills is None and not self._changed and num_decodes > 0
        if prefills is None:
            if num_decodes == 0:
                return None
            num_tokens = self._ones
        else:
            rows, num_tokens = self._with_prefills(decoding, prefills)
        starts = state.computed[rows]
        state.computed[rows] = computed = starts + num_tokens
        if prefills is None:
            samples, host_rows = self._trues, self._host_rows
            planned = state.planned[rows] + 1
        else:
            planned = state.planned[rows]
            samples = computed == planned
            planned = planned + samples
            host_rows = rows[samples & state.host[rows]] if self._num_host else EMPTY_INT
        state.planned[rows] = planned
        state.last_step[rows] = self._step
        self._changed = prefills is not None or bool((planned >= state.limit[rows]).any())
        plan = StepPlan(
            step=self._step,
            rows=rows,
            num_tokens=num_tokens,
            starts=starts,
            samples=samples,
            num_decodes=num_decodes,
            host_rows=host_rows,
            same_rows=same and not self._removed,
        )
        self._fill(plan, extension, prefills)
        self._step += 1
        return plan

    def _with_prefills(self, decoding: IntArray, part: _Prefills) -> tuple[IntArray, IntArray]:
        rows = np.array(part.rows, np.int32)
        counts = np.array(part.num_tokens, np.int32)
        if not len(decoding):
            return rows, counts
        return np.concatenate((decoding, rows)), np.concatenate((self._ones, counts))

    def _fill(
        self, plan: StepPlan, extension: Extension | None, prefills: _Prefills | None
    ) -> None:
        """The parts of a plan that say what changed."""
        if extension is not None:
            plan.block_rows, plan.block_positions = extension.rows, extension.positions
            plan.block_ids, plan.copies = extension.block_ids, extension.copies
        else:
            plan.copies = EMPTY_COPIES
        if prefills is not None:
            plan.new = prefills.new
        if self._removed:
            plan.removed = np.array(self._removed, np.int32)
            self._removed.clear()
        if self._hears_progress:
            heard = self.policy.on_progress
            self._call("on_progress", heard, plan.rows, plan.num_tokens, plan.num_decodes)

    # -- prefill and admission ------------------------------------------------------------

    def _prefill(self, now: float, budget: int) -> _Prefills | None:
        """Chunks of requests in the middle of their prefill, then new requests."""
        part = _Prefills([], [], [])
        for row in list(self._prefilling):
            if budget <= 0:
                break
            budget -= self._continue(row, budget, part)
        if budget > 0 and self._may_admit():
            self._admit(now, budget, part)
        return part if part.rows else None

    def _continue(self, row: int, budget: int, part: _Prefills) -> int:
        state = self.rows.state(row)
        left = int(self.rows.planned[row] - self.rows.computed[row])
        count = min(left, self._chunk_limit(state, budget))
        self._count_recomputed(state, int(self.rows.computed[row]), count)
        if count == left:
            self._end_prefill(row)
        part.rows.append(row)
        part.num_tokens.append(count)
        return count

    def _chunk_limit(self, state: RequestState, budget: int) -> int:
        self._view.budget = budget
        limit = self.limits.chunk_tokens or budget
        if self._chunks:
            chunk = self._call("chunk", self.policy.chunk, state.view, self._view)
            if chunk is not None:
                try:
                    limit = min(limit, check_chunk(chunk))
                except ValueError as error:
                    raise self._nonsense(f"{error} (for {state.view!r})") from None
        return min(limit, budget)

    def _may_admit(self) -> bool:
        """Whether it is worth looking at the queue: a row is free, and something changed since
        the head did not fit."""
        if not len(self._queue) or not self.rows.free:
            return False
        if self._gave_up:  # whoever just gave way must not come back in the same step
            return False
        if self._blocked is None:
            return True
        head, available, step = self._blocked
        entry = self._queue.peek(self._view.now)
        return (
            entry is None
            or entry[4] is not head
            or self.allocator.num_available > available
            or self._step - step >= RETRY_STEPS
        )

    def _admit(self, now: float, budget: int, part: _Prefills) -> None:
        """Start waiting requests in the policy's order until one does not fit."""
        candidates = self._window(now) if self.policy.window > 0 else None
        passed: list[Entry] = []
        self._blocked = None
        self._short = False
        try:
            while budget > 0 and self.rows.free:
                entry = self._next(candidates, now)
                if entry is None:
                    break
                passed.append(entry)
                count = self._start(entry[4], now, budget, part)
                if count:
                    passed.pop()
                    budget -= count
                elif len(passed) > self.policy.skip_ahead:
                    break
        finally:
            if self._short and len(passed) == 1 and candidates is None:
                self._blocked = (passed[0][4], self.allocator.num_available, self._step)
            for entry in passed + (candidates or []):
                self._queue.push_back(entry, now)

    def _next(self, candidates: list[Entry] | None, now: float) -> Entry | None:
        if candidates is None:
            return self._queue.pop(now)
        return candidates.pop(0) if candidates else None

    def _window(self, now: float) -> list[Entry]:
        """The first `window` requests in the order of their momentary ranks."""
        entries: list[Entry] = []
        while len(entries) < self.policy.window and (entry := self._queue.pop(now)) is not None:
            entries.append(entry)
        try:
            self._view.budget = self.limits.max_num_batched_tokens
            views = [entry[4].view for entry in entries]
            ranks = list(self._call("window_rank", self.policy.window_rank, views, self._view))
            if len(ranks) != len(entries):
                raise self._nonsense(
                    f"window_rank() gave {len(ranks)} ranks for {len(entries)} requests"
                )
            order = self._call(
                "window_rank",
                lambda: sorted(range(len(entries)), key=lambda i: (ranks[i], entries[i][:4])),
            )
        except PolicyError:
            for entry in entries:
                self._queue.push_back(entry, now)
            raise
        return [entries[i] for i in order]

    def _start(self, state: RequestState, now: float, budget: int, part: _Prefills) -> int:
        """Admit a waiting request; the tokens that it computes in this step, 0 if not admitted."""
        self._view.budget = budget
        if self._admits and not self._call("admit", self.policy.admit, state.view, self._view):
            return 0
        tokens = state.tokens
        # The last token is always computed: its logits are what the request waits for.
        match = self.allocator.match(tokens[:-1])
        left = len(tokens) - match.num_tokens
        count = min(left, self._chunk_limit(state, budget))
        if count < left and len(self._prefilling) >= self.limits.max_partial_prefills:
            return 0
        row = self.rows.free[-1]
        table = self.allocator.acquire(row, tokens, match)
        if table is None:
            self._short = not self._admits and self.policy.skip_ahead == 0
            return 0
        self._enter(state, match.num_tokens, now)
        self._count_recomputed(state, match.num_tokens, count)
        part.rows.append(row)
        part.num_tokens.append(count)
        part.new.append(
            NewRow(
                row=row,
                request_id=state.request.id,
                token_ids=tokens,
                num_prompt_tokens=state.num_prompt,
                block_ids=table,
                sampling=state.request.sampling,
                seed=state.seed,
                sample_index=state.sample_index,
                arguments=state.request.arguments,
            )
        )
        if count < left:
            self._prefilling.append(row)
            self.rows.prefilling[row] = True
        return count

    def _enter(self, state: RequestState, num_cached: int, now: float) -> None:
        row = self.rows.enter(state, num_cached)
        self.admitted[row] = self._num_admitted
        self._num_admitted += 1
        self._num_custom_stop += int(self.rows.custom_stop[row])
        self._num_streams += int(self.rows.stream[row])
        self._num_host += int(state.host)
        if state.num_preemptions:
            state.num_recovered += num_cached
            self.counters.num_recovered_tokens += num_cached
        else:
            state.scheduled = now
            state.num_cached = num_cached
            self.counters.num_prompt_tokens += state.num_prompt
            self.counters.num_cached_tokens += num_cached
        self._call("on_start", self.policy.on_start, row, state.view, now)

    def _count_recomputed(self, state: RequestState, start: int, count: int) -> None:
        """Tokens below what the request had computed before its last preemption."""
        if state.num_preemptions:
            again = max(0, min(start + count, state.num_computed_before) - start)
            state.num_recomputed += again
            self.counters.num_recomputed_tokens += again

    # -- preemption -----------------------------------------------------------------------

    def _make_way(self, now: float, in_flight: bool) -> Wait | None:
        """Give up rows for a waiting head that outranks them and does not fit."""
        if not self._preempts_for_waiting:
            return None
        while (entry := self._queue.peek(now)) is not None and not self._fits(entry[4]):
            if not self._outranks(entry, self._worst_running()):
                return None
            head = entry[4]
            row = self._call("victim", self.policy.victim, Running(self), head.view)
            if row is None:
                return None
            victim = self._checked_victim(row)
            if not self._outranks(entry, victim):
                raise self._nonsense(
                    f"victim() gave up {victim.view!r} of rank {victim.rank[0]!r} for "
                    f"{head.view!r} of rank {entry[0]!r}, which is not smaller"
                )
            if in_flight:
                return Wait.FOR_STEP_IN_FLIGHT
            self._preempt(victim, now)
        return None

    def _fits(self, state: RequestState) -> bool:
        if not self.rows.free:
            return False
        needed = -(-len(state.tokens) // self.limits.block_size)
        if needed <= self.allocator.num_available:
            return True
        match = self.allocator.match(state.tokens[:-1])
        return needed - len(match.block_ids) <= self.allocator.num_available

    def _outranks(self, entry: Entry, running: RequestState | None) -> bool:
        return running is not None and self._call("key", lambda: bool(entry[0] < running.rank[0]))

    def _victim_for_room(self) -> RequestState:
        if self._preempts_for_waiting:
            row = self._call("victim", self.policy.victim, Running(self), None)
            if row is not None:
                return self._checked_victim(row)
        worst = self._worst_running()
        assert worst is not None
        return worst

    def _worst_running(self) -> RequestState | None:
        running = (self.rows.state(row) for row in np.flatnonzero(self.rows.alive).tolist())
        return self._call("key", lambda: max(running, key=lambda s: s.rank, default=None))

    def _checked_victim(self, row: Any) -> RequestState:
        running = np.flatnonzero(self.rows.alive).tolist()
        if isinstance(row, bool) or row not in running:
            raise self._nonsense(f"victim() named row {row!r}; running rows are {running}")
        return self.rows.state(int(row))

    def _preempt(self, state: RequestState, now: float) -> None:
        """Back to the queue; the tokens are kept, their KV is computed again later."""
        row = state.row
        state.num_computed_before = int(self.rows.computed[row])
        self._drop_row(state)
        state.status = Status.WAITING
        state.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._call("on_preempt", self.policy.on_preempt, row, state.view, now)
        self._queue.push(state, now)

    def _check_not_alone(self) -> None:
        """A request that fits the pool alone must find its blocks when it runs alone."""
        if self.num_running > 1:
            return
        state = self.rows.state(int(self._decoding[0]))
        raise AllocatorError(
            f"request {state.request.id!r} runs alone with {int(self.rows.planned[state.row])} "
            f"tokens and finds no block: the allocator says that "
            f"{self.allocator.num_available} of {self.limits.num_blocks} are available"
        )

    # -- commit ---------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> Committed:
        """Take over what a step produced; plans are committed in their order."""
        rows = self.rows
        self._collected = plan.step
        done = Committed([], [])
        sampled, token_ids = plan.sampled_rows, result.token_ids
        failed = self._failed_rows(sampled, result)
        if failed is not None:
            sampled, token_ids = sampled[~failed], token_ids[~failed]
        live = rows.alive[sampled]
        if not live.all():  # ended meanwhile: what this step drew for them is surplus
            sampled, token_ids = sampled[live], token_ids[live]
        known = rows.known[sampled]
        rows.tokens[sampled, known] = token_ids
        known = known + 1
        rows.known[sampled] = known
        self._share(plan, sampled, failed)
        if rows.no_token_yet[sampled].any():
            self._first_tokens(sampled, now)
        if self._num_streams:
            self._stream(sampled, token_ids, done)
        self._stop(sampled, token_ids, known, now, done)
        if failed is not None:
            self._fail(plan.sampled_rows[failed], now, done)
        if self._leaving:
            self._retire(plan.step)
        return done

    def _failed_rows(self, sampled: IntArray, result: StepResult) -> BoolArray | None:
        if len(result.token_ids) != len(sampled):
            raise AllocatorError(
                f"step {result.step} brought {len(result.token_ids)} tokens for "
                f"{len(sampled)} sampling rows"
            )
        return result.failed if result.failed is not None and result.failed.any() else None

    def _share(self, plan: StepPlan, sampled: IntArray, failed: BoolArray | None) -> None:
        """Blocks written by a collected step may be shared; a failed row shares nothing."""
        rows = plan.rows
        good = self.rows.alive[rows]
        if failed is not None:
            good &= ~np.isin(rows, plan.sampled_rows[failed])
        computed = plan.starts + plan.num_tokens
        if not good.all():
            rows, computed = rows[good], computed[good]
        self.allocator.commit(rows, computed, self.rows.tokens)

    def _first_tokens(self, sampled: IntArray, now: float) -> None:
        for row in sampled[self.rows.no_token_yet[sampled]].tolist():
            self.rows.no_token_yet[row] = False
            self.rows.state(row).first_token = now

    def _stream(self, sampled: IntArray, token_ids: IntArray, done: Committed) -> None:
        for i in np.flatnonzero(self.rows.stream[sampled]).tolist():
            state = self.rows.state(int(sampled[i]))
            done.deltas.append(TokenDelta(state.request.id, token_ids[i : i + 1]))

    def _stop(
        self, sampled: IntArray, token_ids: IntArray, known: IntArray, now: float, done: Committed
    ) -> None:
        """End rows that drew an end token or have all the tokens that they may have."""
        rows = self.rows
        full = known >= rows.limit[sampled]
        stop = np.zeros(len(sampled), np.bool_)
        for eos in self._eos:
            stop |= token_ids == eos
        stop &= ~rows.ignore_eos[sampled]
        if self._num_custom_stop:
            for i in np.flatnonzero(rows.custom_stop[sampled]).tolist():
                stops = rows.state(int(sampled[i])).request.sampling.stop_token_ids
                stop[i] |= int(token_ids[i]) in stops
        for i in np.flatnonzero(full | stop).tolist():
            reason = FinishReason.STOP if stop[i] else FinishReason.LENGTH
            done.finished.append(self._end(rows.state(int(sampled[i])), reason, now))

    def _fail(self, failed: IntArray, now: float, done: Committed) -> None:
        for row in failed[self.rows.alive[failed]].tolist():
            self.counters.num_failed_rows += 1
            text = "numerical: the model's logits for the next token are not finite"
            state = self.rows.state(row)
            done.finished.append(self._end(state, FinishReason.ERROR, now, text))

    def _retire(self, step: int) -> None:
        """Free rows of ended requests whose last step has been collected."""
        waiting: list[int] = []
        for row in self._leaving:
            if self.rows.last_step[row] <= step:
                self._free(row)
            else:
                waiting.append(row)
        self._leaving = waiting

    # -- policy calls ---------------------------------------------------------------------

    def _call(self, name: str, method: Callable[..., T], *args: Any) -> T:
        try:
            return method(*args)
        except PolicyError:
            raise
        except Exception as error:
            text = f"{name}() raised {type(error).__name__}: {error}"
            raise self._nonsense(text) from error

    def _nonsense(self, text: str) -> PolicyError:
        return PolicyError(
            f"scheduler {type(self.policy).__name__}: {text}\n"
            f"  step {self._step}: {self.num_running} running, {self.num_waiting} waiting, "
            f"{self.allocator.num_available} of {self.limits.num_blocks} blocks available"
        )
