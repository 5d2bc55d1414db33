"""Who runs in a step, how many tokens each computes, and who gives way.

The policy proposes, the scheduler disposes: it owns queues, budgets, chunking, the composition
of a step, the accounting of blocks, preemption and the order of events. It is the one writer
of request states. A step is `plan_step` (down) and `commit_step` (up); with overlap, step k + 1 is
planned while step k is in flight.

    waiting.py     the queue in the policy's order      running.py       rows and their blocks
    admission.py   prefill and new requests             preemption.py    who gives way
    commit.py      what a step produced                 policy_guard.py  calls into the policy
"""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.kv_allocator import Extension, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import RequestOutput, TokenDelta
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy
from nanofw.engine.admission import Admission, Prefills
from nanofw.engine.commit import Committer
from nanofw.engine.counters import Counters
from nanofw.engine.policy_guard import PolicyGuard
from nanofw.engine.preemption import Preemption, Wait
from nanofw.engine.request_state import RequestState, RequestStatus
from nanofw.engine.rows import Rows
from nanofw.engine.running import RunningSet
from nanofw.engine.views import EngineView, Running
from nanofw.engine.waiting import WaitingQueue
from nanofw.errors import PolicyError


class Scheduler:
    """Queues, rows and plans. See the module's first lines.

    Attributes:
        limits, policy, allocator: what it was made of.
        counters: totals.
        running: the rows.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        allocator: KVAllocator,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.limits, self.policy, self.allocator = limits, policy, allocator
        self.counters = counters = Counters()
        self.running = running = RunningSet(limits, allocator)
        self._states: dict[str, list[RequestState]] = {}  # live samples by request id
        self._siblings: dict[str, list[RequestState]] = {}  # samples that wait for the first one
        self._finished: list[RequestOutput] = []
        self._finished_ids: set[str] = set()  # of those
        self._step = 0
        self._guard = guard = PolicyGuard(policy, self._describe)
        self._queue = queue = WaitingQueue(guard)
        self._view = view = EngineView(limits, running, queue, allocator)
        self._admission = Admission(limits, running, queue, guard, view, allocator, counters)
        self._preemption = Preemption(
            limits, running, queue, guard, allocator, counters, lambda: Running(running, limits)
        )
        self._committer = Committer(running, allocator, counters, eos_token_ids)

    @property
    def rows(self) -> Rows:
        """The arrays over all rows."""
        return self.running.rows

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Waiting requests, each sample counted."""
        return len(self._queue) + sum(len(siblings) for siblings in self._siblings.values())

    @property
    def has_requests(self) -> bool:
        """Whether any request is accepted and not finished; costs nothing, however many."""
        return bool(self._states)

    @property
    def num_requests(self) -> int:
        """Accepted and not finished, each sample counted."""
        return sum(len(states) for states in self._states.values())

    @property
    def num_unfinished_tokens(self) -> int:
        """Tokens generated so far for requests that have not finished."""
        rows = self.rows
        num = int((rows.known - rows.num_prompt)[rows.alive].sum())
        if self.counters.num_preemptions:  # no other request waits with tokens
            waiting = (state for samples in self._states.values() for state in samples)
            num += sum(
                state.num_output for state in waiting if state.status is RequestStatus.WAITING
            )
        return num

    def has_request(self, request_id: str) -> bool:
        """Whether a request of that id waits or runs, or has an output not yet taken."""
        return request_id in self._states or request_id in self._finished_ids

    # -- requests -------------------------------------------------------------------------

    def add_request(self, samples: list[RequestState], now: float) -> None:
        """Queue a validated request. Raises `PolicyError` when the policy fails on it.

        Of several samples the first is queued; the others follow when its prompt has been
        computed, so that they find the prompt's full blocks in the prefix cache.
        """
        first, request_id = samples[0], samples[0].request.id
        self._states[request_id] = list(samples)
        try:
            self._enqueue(first, now)
        except PolicyError:
            del self._states[request_id]
            raise
        if len(samples) > 1:
            self._siblings[request_id] = samples[1:]

    def _enqueue(self, state: RequestState, now: float) -> None:
        self._guard.on_arrival(state, now)
        try:
            self._queue.push(state, now)
        except PolicyError:
            state.status = RequestStatus.FINISHED
            self._guard.on_finish(state, FinishReason.REFUSED, now)
            raise

    def _queue_siblings(self, request_id: str, now: float) -> None:
        """The first sample has its first token, or is finished."""
        for state in self._siblings.pop(request_id, ()):
            try:
                self._enqueue(state, now)
            except PolicyError as error:
                state.status = RequestStatus.FINISHED
                self._remove_state(state)
                self._make_output(state, FinishReason.ERROR, now, str(error), policy_knows=False)

    def finish_request(
        self,
        request_id: str,
        reason: FinishReason,
        now: float,
        *,
        error: str | None = None,
        num_tokens: int | None = None,
        sample_index: int | None = None,
    ) -> bool:
        """Finish a request in whatever state it is; False when none has that id.

        Args:
            num_tokens: generated tokens to keep; None: all that were committed.
            sample_index: the one sample to finish; None: all of them.
        """
        found, problem = False, None
        # The last first: samples that wait for the first are not queued only to be finished.
        for state in self._states.get(request_id, [])[::-1]:
            if sample_index is None or state.sample_index == sample_index:
                if num_tokens is not None:
                    self._truncate(state, state.num_prompt + num_tokens)
                try:
                    self._finish(state, reason, now, error)
                except PolicyError as raised:  # on_finish of one must not keep the others
                    problem = problem or raised
                found = True
        if problem is not None:
            raise problem
        return found

    @property
    def has_finished(self) -> bool:
        """Whether `take_finished` has something."""
        return bool(self._finished)

    def take_finished(self) -> list[RequestOutput]:
        """Requests that finished since the last call."""
        finished, self._finished = self._finished, []
        self._finished_ids.clear()
        return finished

    def _truncate(self, state: RequestState, length: int) -> None:
        if state.status is RequestStatus.RUNNING:
            self.rows.known[state.row] = min(length, int(self.rows.known[state.row]))
        else:
            state.tokens = state.tokens[:length]
            state.num_output = len(state.tokens) - state.num_prompt

    def _finish(
        self, state: RequestState, reason: FinishReason, now: float, error: str | None
    ) -> None:
        siblings = self._siblings.get(state.request.id, [])
        if state in siblings:
            siblings.remove(state)
            state.status = RequestStatus.FINISHED
            self._remove_state(state)
            self._make_output(state, reason, now, error, policy_knows=False)
            return
        was_running = state.status is RequestStatus.RUNNING
        if was_running:
            self.running.remove_request(state)
        state.status = RequestStatus.FINISHED
        if not was_running:
            self._queue.note_finished()
        self._remove_state(state)
        try:
            self._make_output(state, reason, now, error)
        finally:
            if state.sample_index == 0:
                self._queue_siblings(state.request.id, now)

    def _remove_state(self, state: RequestState) -> None:
        samples = self._states[state.request.id]
        samples.remove(state)
        if not samples:
            del self._states[state.request.id]

    def _make_output(
        self,
        state: RequestState,
        reason: FinishReason,
        now: float,
        error: str | None,
        *,
        policy_knows: bool = True,
    ) -> None:
        """Make the output; `policy_knows`: the policy has heard of the request."""
        state.finish_reason, state.error, state.finished = reason, error, now
        self.counters.num_output_tokens += state.num_output
        self._finished_ids.add(state.request.id)
        self._finished.append(state.output())  # before the policy hears of it: it may raise
        if policy_knows:
            self._guard.on_finish(state, reason, now)

    # -- plan -----------------------------------------------------------------------------

    def plan_step(self, now: float, *, in_flight: bool) -> StepPlan | Wait | None:
        """The next step; None when nothing can run now.

        With a step in flight, `Wait` says that it must be collected before a row may be given
        up. Nothing has changed then, but for what the policy keeps of its own.
        """
        self._view.now = now
        self._preemption.made_room = False
        if self._preemption.make_way(now, in_flight=in_flight) is not None:
            return Wait.FOR_STEP_IN_FLIGHT
        self.running.refresh()
        if self.limits.prefill_first:
            prefills = self._prefill(now, self.limits.max_num_batched_tokens)
            if prefills is not None:
                return self._build(EMPTY_INT, None, prefills)
        extension = self._preemption.extend(now, in_flight=in_flight)
        if isinstance(extension, Wait):
            return extension
        prefills, decoding = None, self.running.decoding
        if not self.limits.prefill_first:
            prefills = self._prefill(now, self.limits.max_num_batched_tokens - len(decoding))
        return self._build(decoding, extension, prefills)

    def _prefill(self, now: float, budget: int) -> Prefills | None:
        # Whoever just gave way must not come back in the same step.
        return self._admission.fill(now, budget, closed=self._preemption.made_room)

    def _build(
        self, decoding: IntArray, extension: Extension | None, prefills: Prefills | None
    ) -> StepPlan | None:
        """The plan's arrays, and the rows moved on as if it were done."""
        if prefills is not None:
            plan = self._mixed_plan(decoding, prefills)
        elif len(decoding):
            plan = self._decode_plan(decoding)
        else:
            return None
        if extension is not None:
            plan.block_rows, plan.block_positions = extension.rows, extension.positions
            plan.block_ids, plan.copies = extension.block_ids, extension.copies
        plan.removed = self.running.take_removed()
        self._step += 1
        self.running.num_planned = self._step
        self._guard.on_progress(plan.rows, plan.num_tokens, plan.num_decodes)
        return plan

    def _decode_plan(self, rows: IntArray) -> StepPlan:
        running, state = self.running, self.rows
        starts, same = running.starts, not running.changed
        running.starts = ends = starts + 1
        state.computed[rows] = ends
        state.planned[rows] = ends + 1  # one token was left to compute, one more is sampled
        state.last_step[rows] = self._step
        running.steps_left -= 1
        running.changed = running.steps_left <= 0
        return StepPlan(
            step=self._step,
            rows=rows,
            num_tokens=running.ones,
            starts=starts,
            samples=running.trues,
            num_decodes=len(rows),
            host_rows=running.host_rows,
            same_rows=same,
        )

    def _mixed_plan(self, decoding: IntArray, prefills: Prefills) -> StepPlan:
        running, state = self.running, self.rows
        rows, num_tokens = prefills.arrays()
        if len(decoding):
            rows = np.concatenate((decoding, rows))
            num_tokens = np.concatenate((running.ones, num_tokens))
        starts = state.computed[rows]
        ends = starts + num_tokens
        state.computed[rows] = ends
        samples = ends == state.planned[rows]
        state.planned[rows] += samples
        state.last_step[rows] = self._step
        running.changed = True
        return StepPlan(
            step=self._step,
            rows=rows,
            num_tokens=num_tokens,
            starts=starts,
            samples=samples,
            num_decodes=len(decoding),
            host_rows=rows[samples & state.host[rows]] if running.num_host else EMPTY_INT,
            new=prefills.new,
        )

    # -- commit ---------------------------------------------------------------------------

    def commit_step(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenDelta]:
        """Take over what a step produced; plans are committed in their order.

        Returns the new tokens of streaming requests; see `take_finished` for finished requests.
        """
        deltas: list[TokenDelta] = []

        def finish(state: RequestState, reason: FinishReason, error: str | None) -> None:
            self._finish(state, reason, now, error)

        for started in self._committer.commit_step(plan, result, now, deltas, finish):
            self._queue_siblings(started, now)
        return deltas

    def _describe(self) -> str:
        return (
            f"step {self._step}: {self.num_running} running, {self.num_waiting} waiting, "
            f"{self.allocator.num_available} of {self.limits.num_blocks} blocks available"
        )
