"""Taking over what a step produced: tokens, shareable blocks, ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nanofw.core.contracts.kv_allocator import KVAllocator
from nanofw.core.limits import Counters
from nanofw.core.plan import StepPlan, StepResult
from nanofw.core.running import RunningSet
from nanofw.core.state import RequestState
from nanofw.core.types import BoolArray, FinishReason, IntArray, TokenDelta
from nanofw.errors import ExecutorError

NOT_FINITE = "numerical: the model's logits for the next token are not finite"

End = Callable[[RequestState, FinishReason, str | None], None]


class Committer:
    """Commits steps in their order. Vectorised; only flagged rows are looked at one by one."""

    def __init__(
        self,
        running: RunningSet,
        allocator: KVAllocator,
        counters: Counters,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._running, self._allocator, self._counters = running, allocator, counters
        self._eos = eos_token_ids

    def commit(
        self, plan: StepPlan, result: StepResult, now: float, deltas: list[TokenDelta], end: End
    ) -> None:
        """Append tokens, share blocks, end what is at its end, free what the step held.

        Tokens of requests that ended while the step was in flight are surplus: they reach
        nothing. A row whose logits were not finite ends, and shares nothing.
        """
        rows = self._running.rows
        self._running.collected = plan.step
        sampled, token_ids, failed = self._sampled(plan, result)
        known = rows.known[sampled]
        rows.tokens[sampled, known] = token_ids
        known = known + 1
        rows.known[sampled] = known
        self._share(plan, failed)
        if rows.no_token_yet[sampled].any():
            self._first_tokens(sampled, now)
        if self._running.num_streams:
            self._stream(sampled, token_ids, deltas)
        self._stop(sampled, token_ids, known, end)
        if failed is not None:
            self._fail(plan.sampled_rows[failed], end)
        self._running.retire(plan.step)

    def _sampled(
        self, plan: StepPlan, result: StepResult
    ) -> tuple[IntArray, IntArray, BoolArray | None]:
        """Rows and tokens that count, and bool[s] of the rows that failed, if any did."""
        sampled, token_ids, failed = plan.sampled_rows, result.token_ids, result.failed
        if len(token_ids) != len(sampled):
            raise ExecutorError(
                f"step {result.step} brought {len(token_ids)} tokens for "
                f"{len(sampled)} sampling rows"
            )
        good = self._running.rows.alive[sampled]
        if failed is not None:
            good &= ~failed
        if not good.all():
            sampled, token_ids = sampled[good], token_ids[good]
        return sampled, token_ids, failed if failed is not None and failed.any() else None

    def _share(self, plan: StepPlan, failed: BoolArray | None) -> None:
        """Blocks that a collected step wrote may be shared from now on."""
        rows, computed = plan.rows, plan.starts + plan.num_tokens
        good = self._running.rows.alive[rows]
        if failed is not None:
            good &= ~np.isin(rows, plan.sampled_rows[failed])
        if not good.all():
            rows, computed = rows[good], computed[good]
        self._allocator.commit(rows, computed, self._running.rows.tokens)

    def _first_tokens(self, sampled: IntArray, now: float) -> None:
        rows = self._running.rows
        for row in sampled[rows.no_token_yet[sampled]].tolist():
            rows.no_token_yet[row] = False
            rows.state(row).first_token = now

    def _stream(self, sampled: IntArray, token_ids: IntArray, deltas: list[TokenDelta]) -> None:
        rows = self._running.rows
        for i in np.flatnonzero(rows.stream[sampled]).tolist():
            state = rows.state(int(sampled[i]))
            deltas.append(TokenDelta(state.request.id, token_ids[i : i + 1]))

    def _stop(self, sampled: IntArray, token_ids: IntArray, known: IntArray, end: End) -> None:
        """End rows that drew an end token or have all the tokens that they may have."""
        rows = self._running.rows
        full = known >= rows.limit[sampled]
        stop = np.zeros(len(sampled), np.bool_)
        for eos in self._eos:
            stop |= token_ids == eos
        stop &= ~rows.ignore_eos[sampled]
        if self._running.num_custom_stop:
            for i in np.flatnonzero(rows.custom_stop[sampled]).tolist():
                stops = rows.state(int(sampled[i])).request.sampling.stop_token_ids
                stop[i] |= int(token_ids[i]) in stops
        ended = [(int(sampled[i]), bool(stop[i])) for i in np.flatnonzero(full | stop).tolist()]
        for row, stopped in ended:
            end(rows.state(row), FinishReason.STOP if stopped else FinishReason.LENGTH, None)

    def _fail(self, failed: IntArray, end: End) -> None:
        rows = self._running.rows
        for row in failed[rows.alive[failed]].tolist():
            self._counters.num_failed_rows += 1
            end(rows.state(row), FinishReason.ERROR, NOT_FINITE)
