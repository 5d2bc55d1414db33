"""Taking over what a step produced: tokens, shareable blocks, finished requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.outputs import TokenDelta
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import FinishReason
from nanofw.engine.checked_allocator import CheckedAllocator
from nanofw.engine.counters import Counters
from nanofw.engine.request_state import RequestState
from nanofw.engine.running import RunningSet

NOT_FINITE = "numerical: the logits for the next token are not finite, or no token is allowed"

Finish = Callable[[RequestState, FinishReason, str | None], None]


class Committer:
    """Commits steps in their order. Vectorised; only flagged rows are looked at one by one."""

    def __init__(
        self,
        running: RunningSet,
        allocator: CheckedAllocator,
        counters: Counters,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._running, self._allocator, self._counters = running, allocator, counters
        self._eos = eos_token_ids

    def commit_step(
        self,
        plan: StepPlan,
        result: StepResult,
        now: float,
        deltas: list[TokenDelta],
        finish: Finish,
    ) -> list[str]:
        """Append tokens, share blocks, finish requests, release rows that only the step held.

        Tokens of requests that finished while the step was in flight are surplus: they reach
        nothing. A request whose logits were not finite fails, and shares nothing. Returns the ids
        of requests that have their first token.
        """
        rows = self._running.rows
        self._running.note_collected(plan.step)
        sampled, token_ids, failed = self._sampled(plan, result)
        computed = plan.starts + plan.num_tokens
        # Where each row sampled and is alive, its token follows what the step computed.
        known = computed if sampled is plan.rows else rows.known[sampled]
        rows.tokens[sampled, known] = token_ids
        known = known + 1
        rows.known[sampled] = known
        self._share(plan, computed, failed)
        started = self._first_tokens(sampled, now) if self._running.num_unstarted else []
        if self._running.num_logprobs:
            self._log(plan, result)
        if self._running.num_streams:
            self._stream(sampled, token_ids, deltas)
        self._finish_complete(sampled, token_ids, known, finish)
        if failed is not None:
            self._fail(plan.sampled_rows[failed], finish)
        self._running.release_held(plan.step)
        return started

    def _sampled(
        self, plan: StepPlan, result: StepResult
    ) -> tuple[IntArray, IntArray, BoolArray | None]:
        """Rows and tokens that count, and bool[s] of the rows that failed, if any did."""
        sampled, token_ids, failed = plan.sampled_rows, result.token_ids, result.failed
        if failed is None and self._all_alive(plan):
            return sampled, token_ids, None
        good = self._running.rows.alive[sampled]
        if failed is not None:
            good &= ~failed
        if not good.all():
            sampled, token_ids = sampled[good], token_ids[good]
        return sampled, token_ids, failed if failed is not None and failed.any() else None

    def _all_alive(self, plan: StepPlan) -> bool:
        """No request was removed since the plan was made."""
        return self._running.last_removal <= plan.step

    def _share(self, plan: StepPlan, computed: IntArray, failed: BoolArray | None) -> None:
        """Blocks that a collected step wrote may be shared from now on."""
        rows = plan.rows
        if failed is not None or not self._all_alive(plan):
            good = self._running.rows.alive[rows]
            if failed is not None:
                good &= ~np.isin(rows, plan.sampled_rows[failed])
            rows, computed = rows[good], computed[good]
        self._allocator.commit(rows, computed, self._running.rows.shown_tokens)

    def _first_tokens(self, sampled: IntArray, now: float) -> list[str]:
        rows = self._running.rows
        first = sampled[rows.no_token_yet[sampled]]
        rows.no_token_yet[first] = False
        self._running.note_started(len(first))
        started: list[str] = []
        for row in first.tolist():
            state = rows.state(row)
            state.first_token = now
            started.append(state.request.id)
        return started

    def _log(self, plan: StepPlan, result: StepResult) -> None:
        """Keep log probabilities and embeddings; those of a prompt that is computed again are
        there already."""
        rows = self._running.rows
        for row, logprobs in result.logprobs.items():
            if rows.alive[row] and self._good(row, plan, result):
                rows.state(row).logprobs.append(logprobs)
        starts = dict(zip(plan.rows.tolist(), plan.starts.tolist(), strict=True))
        for row, logprobs in result.prompt_logprobs.items():
            if not rows.alive[row]:
                continue
            kept = rows.state(row).prompt_logprobs
            # A prompt that is computed again may be cut into other chunks.
            num_again = sum(len(part) for part in kept) - starts[row]
            if 0 <= num_again < len(logprobs):
                kept.append(logprobs.after(num_again))
        for row, embedding in result.embeddings.items():
            if rows.alive[row] and self._good(row, plan, result):
                rows.state(row).embedding = embedding

    def _good(self, row: int, plan: StepPlan, result: StepResult) -> bool:
        failed = result.failed
        return failed is None or not bool(failed[plan.sampled_rows == row].any())

    def _stream(self, sampled: IntArray, token_ids: IntArray, deltas: list[TokenDelta]) -> None:
        rows = self._running.rows
        for i in np.flatnonzero(rows.stream[sampled]).tolist():
            state = rows.state(int(sampled[i]))
            last = state.logprobs[-1] if state.logprobs else None
            tokens = token_ids[i : i + 1]
            deltas.append(TokenDelta(state.request.id, tokens, state.sample_index, last))

    def _finish_complete(
        self, sampled: IntArray, token_ids: IntArray, known: IntArray, finish: Finish
    ) -> None:
        """Finish requests that sampled an end token or have all the tokens that they may have."""
        rows = self._running.rows
        done = known >= rows.limit[sampled]
        stop = self._stopped(sampled, token_ids)
        if stop is not None:
            done |= stop
        for i in done.nonzero()[0].tolist():
            stopped = stop is not None and bool(stop[i])
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            finish(rows.state(int(sampled[i])), reason, None)

    def _stopped(self, sampled: IntArray, token_ids: IntArray) -> BoolArray | None:
        """bool[s], rows that sampled a token that ends them; None: no row can."""
        rows, running = self._running.rows, self._running
        if not running.num_ending and not running.num_custom_stop:
            return None
        stop = np.zeros(len(sampled), np.bool_)
        if running.num_ending:
            for eos in self._eos:
                stop |= token_ids == eos
            ends = stop.nonzero()[0]
            if len(ends):
                stop[ends] = ~rows.ignore_eos[sampled[ends]]
        if running.num_custom_stop:
            for i in np.flatnonzero(rows.custom_stop[sampled]).tolist():
                stops = rows.state(int(sampled[i])).request.sampling.stop_token_ids
                stop[i] |= int(token_ids[i]) in stops
        return stop

    def _fail(self, failed: IntArray, finish: Finish) -> None:
        rows = self._running.rows
        for row in failed[rows.alive[failed]].tolist():
            self._counters.num_failed_rows += 1
            finish(rows.state(row), FinishReason.ERROR, NOT_FINITE)
