"""Who runs in a step, how many tokens each computes, and who gives way.

The policy proposes, the scheduler disposes: it owns queues, budgets, chunking, the composition
of a step, the accounting of blocks, preemption and the order of events. It is the one writer
of request states. A step is `plan_step` (down) and `commit_step` (up); with overlap, step k + 1 is
planned while step k is in flight.

    waiting.py       the queue in the policy's order    running.py     rows, and the plan's arrays
    admission.py     prefill and new requests           preemption.py  who gives way
    policy_guard.py  calls into the policy              commit.py      what a step produced
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.kv_allocator import NO_EXTENSION, Extension, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import RequestOutput, TokenDelta
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, Refuse
from nanofw.engine.admission import Admission
from nanofw.engine.checked_allocator import CheckedAllocator
from nanofw.engine.commit import Committer
from nanofw.engine.counters import Counters
from nanofw.engine.journal import Journal
from nanofw.engine.parts import Parts
from nanofw.engine.policy_guard import PolicyGuard
from nanofw.engine.preemption import Preemption, Wait
from nanofw.engine.request_state import RequestState, RequestStatus
from nanofw.engine.rows import Rows
from nanofw.engine.running import Prefills, RunningSet
from nanofw.engine.strides import Strides
from nanofw.engine.views import EngineView
from nanofw.engine.waiting import WaitingQueue
from nanofw.errors import NanofwError, PolicyError, RequestShed


class Scheduler:
    """Queues, rows and plans. See the module's first lines.

    Args:
        labels: what messages call policy and allocator, by kind.
        check_every: steps between two checks of the allocator's accounting; 0: never.

    Attributes:
        limits, policy: what it was made of.
        allocator: the one that it was made of, with its answers checked.
        counters: totals.
        running: the rows.
        journal: what it decides beside its plans.
        strides: steps that are taken at once.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        allocator: KVAllocator,
        eos_token_ids: tuple[int, ...] = (),
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        check_every: int = 0,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self._check_every = check_every
        checked = CheckedAllocator(allocator, limits, labels.get("kv_allocator", ""))
        running, counters = RunningSet(limits, checked), Counters()
        self.allocator: CheckedAllocator = checked
        self.counters: Counters = counters
        self.running: RunningSet = running
        self._states: dict[str, list[RequestState]] = {}  # live samples by request id
        self._siblings: dict[str, list[RequestState]] = {}  # samples that wait for the first one
        self._finished: list[RequestOutput] = []
        self._finished_ids: set[str] = set()  # of those
        self._view = EngineView(limits, running, checked)
        self._guard = guard = PolicyGuard(
            policy, self._view, self._describe, labels.get("scheduler", "")
        )
        self.journal: Journal = Journal()
        self._queue = self._view.queue = WaitingQueue(guard, self.journal)
        parts = Parts(
            limits, running, self._queue, guard, checked, counters, self.journal, self._shed
        )
        self._admission, self._preemption = Admission(parts), Preemption(parts)
        self.strides: Strides = Strides(parts, self._admission, check_every)
        self._committer = Committer(running, checked, counters, eos_token_ids)

    @property
    def rows(self) -> Rows:
        """The arrays over all rows."""
        return self.running.rows

    @property
    def now(self) -> float:
        """The time at which it was last called."""
        return self._view.now

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Waiting requests, each sample counted."""
        num = len(self._queue)
        if self._siblings:
            num += sum(len(siblings) for siblings in self._siblings.values())
        return num

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

    def check_arguments(self, arguments: object) -> None:
        """Raise ValueError when a request's arguments for the policy are wrong."""
        self._guard.check(self.policy.check, arguments)

    def add_request(self, samples: list[RequestState], now: float) -> None:
        """Queue a validated request.

        Of several samples the first is queued; the others follow when its prompt has been
        computed, so that they find the prompt's full blocks in the prefix cache.

        Raises:
            PolicyError: the policy fails on it.
            RequestShed: the policy refuses it.
        """
        self._view.now = now
        first, request_id = samples[0], samples[0].request.id
        self._states[request_id] = list(samples)
        try:
            refusal = self._enqueue(first)
        except PolicyError:
            del self._states[request_id]
            raise
        if refusal is not None:
            del self._states[request_id]
            raise RequestShed(request_id, refusal.reason, refusal.retry_after_s)
        if len(samples) > 1:
            self._siblings[request_id] = samples[1:]

    def _enqueue(self, state: RequestState) -> Refuse | None:
        self._guard.on_arrival(state)
        state.is_known = True
        reason = FinishReason.REFUSED
        try:
            refusal = self._queue.push(state)
            if refusal is None:
                return None
            reason = FinishReason.SHED
        finally:
            if state.ticket < 0:
                state.status, state.is_known = RequestStatus.FINISHED, False
                self._guard.on_finish(state, reason)
        return refusal

    def _queue_siblings(self, request_id: str) -> None:
        """The first sample has its first token, or is finished."""
        for state in self._siblings.pop(request_id, ()):
            reason, sentence = FinishReason.ERROR, ""
            try:
                refusal = self._enqueue(state)
                if refusal is None:
                    continue
                reason, sentence = FinishReason.SHED, refusal.reason
                state.retry_after_s = refusal.retry_after_s
            except PolicyError as error:
                sentence = str(error)
            state.status = RequestStatus.FINISHED
            self._remove_state(state)
            self._make_output(state, reason, sentence)

    def _shed(self, state: RequestState, refusal: Refuse) -> None:
        """Finish a waiting request that the policy refused."""
        state.retry_after_s = refusal.retry_after_s
        self._finish(state, FinishReason.SHED, refusal.reason)

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
        self._view.now = now
        found = False
        # The last first: samples that wait for the first are not queued only to be finished.
        for state in self._states.get(request_id, [])[::-1]:
            if sample_index is None or state.sample_index == sample_index:
                if num_tokens is not None:
                    self._truncate(state, state.num_prompt + num_tokens)
                self._finish(state, reason, error)
                found = True
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

    def _finish(self, state: RequestState, reason: FinishReason, error: str | None) -> None:
        siblings = self._siblings.get(state.request.id, [])
        if state in siblings:
            siblings.remove(state)
            state.status = RequestStatus.FINISHED
            self._remove_state(state)
            self._make_output(state, reason, error)
            return
        if state.status is RequestStatus.RUNNING:
            state.finished_in_row = True
            self.running.remove_request(state)
        state.status = RequestStatus.FINISHED
        self._queue.discard(state)
        self._remove_state(state)
        self._make_output(state, reason, error)
        if state.sample_index == 0:
            self._queue_siblings(state.request.id)

    def _remove_state(self, state: RequestState) -> None:
        samples = self._states[state.request.id]
        samples.remove(state)
        if not samples:
            del self._states[state.request.id]

    def _make_output(self, state: RequestState, reason: FinishReason, error: str | None) -> None:
        try:
            if state.is_known:
                state.is_known = False
                self._guard.on_finish(state, reason)
        finally:  # an interrupt goes through
            state.finish_reason, state.error, state.finished = reason, error, self._view.now
            self.counters.num_output_tokens += state.num_output
            self._finished_ids.add(state.request.id)
            self.running.note_finished(state)
            self._finished.append(state.output())

    # -- plan -----------------------------------------------------------------------------

    def plan_step(self, now: float, *, in_flight: bool) -> StepPlan | Wait | None:
        """The next step; None when nothing can run now.

        With a step in flight, `Wait` says that it must be collected before a row may be given
        up. Nothing has changed then, but for what the policy keeps of its own, new keys and
        requests that it refused.
        """
        self._view.now = now
        if self._guard.rekeys:
            self._rekey()
        if self._guard.names_victims and self._preemption.make_way(in_flight=in_flight):
            return Wait.FOR_STEP_IN_FLIGHT
        if self._guard.pauses:
            self.running.pause(self._guard.pause())
        budget = self._view.budget = self.limits.max_num_batched_tokens
        if self._guard.budgets and (chosen := self._guard.step_budget()) is not None:
            budget = min(budget, chosen)
        self.running.refresh(budget)
        if self.limits.prefill_first:
            prefills = self._admission.fill(budget, closed=False)
            if prefills is not None:
                return self._build(EMPTY_INT, None, prefills)
        extension, is_short = None, False
        if len(self.running.decoding):
            extension = self.allocator.extend(self.running.decoding, self.running.starts + 1)
            is_short = extension is None
            if is_short:
                extension = self._preemption.make_room(budget, in_flight=in_flight)
            if isinstance(extension, Wait):
                return extension
        prefills, decoding = None, self.running.decoding
        if not self.limits.prefill_first:
            # A request that just gave way must not come back in the same step.
            prefills = self._admission.fill(budget - len(decoding), closed=is_short)
        return self._build(decoding, extension, prefills)

    def _rekey(self) -> None:
        for state in self._guard.rekey():
            if state.status is RequestStatus.WAITING:
                refusal = self._queue.rekey(state)
                if refusal is not None:
                    self._shed(state, refusal)
                continue
            key = self._guard.key(state)
            if type(key) is Refuse:
                raise self._guard.error(
                    f"key() refused {state.view!r}, which is running; let victim() give it up"
                )
            self.running.set_key(state, key)
            self.journal.note_key(state, key)

    def wake(self) -> float | None:
        """When the policy wants to be asked again, now that nothing can run; None: never."""
        return self._guard.wake() if self._states else None

    def no_progress(self) -> NanofwError:
        """The error of a run in which nothing can ever change, with what is to blame."""
        return self._admission.allocator_error() or self._guard.error(
            "nothing runs, no request is admitted and wake() names no later time, so nothing can "
            "ever change"
        )

    def _build(
        self, decoding: IntArray, extension: Extension | None, prefills: Prefills | None
    ) -> StepPlan | None:
        """The plan's arrays, and the rows moved on as if it were done."""
        given = extension or NO_EXTENSION
        if prefills is not None:
            plan = self.running.plan_mixed(decoding, given, prefills)
        elif len(decoding):
            plan = self.running.plan_decodes(given)
        else:
            return None
        plan.removed, plan.finished = self.running.close_plan()
        if self._guard.hears_progress:
            self._guard.on_progress(plan.rows, plan.num_tokens, plan.num_decodes)
        return plan

    # -- commit ---------------------------------------------------------------------------

    def commit_step(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenDelta]:
        """Take over what a step produced; plans are committed in their order.

        Returns the new tokens of streaming requests; see `take_finished` for finished requests.
        """
        self._view.now = now
        deltas: list[TokenDelta] = []
        for started in self._committer.commit_step(plan, result, now, deltas, self._finish):
            self._queue_siblings(started)
        if self._check_every and not plan.step % self._check_every:
            self.allocator.check_integrity()
        return deltas

    def _describe(self) -> str:
        return (
            f"step {self.running.num_planned}: {self.num_running} running, "
            f"{self.num_waiting} waiting, "
            f"{self.allocator.num_available} of {self.limits.num_blocks} blocks available"
        )
