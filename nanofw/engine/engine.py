"""The engine: requests in, token ids out. It knows nothing of text, HTTP or devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import Clock, RealClock
from nanofw.contracts.executor import Executor, ExecutorFacts
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.plan import HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.base import BaseEngine
from nanofw.engine.executor_guard import ExecutorGuard
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.observers import Observers
from nanofw.engine.pending_step import PendingStep, admitted_by
from nanofw.engine.plugin_names import PluginNames
from nanofw.engine.request_state import RequestState, sample_id
from nanofw.engine.scheduler import Scheduler, Wait
from nanofw.errors import ExecutorError, NanofwError, RequestError
from nanofw.narrowing import Stats


class Engine(BaseEngine):
    """A scheduler, an executor and a clock.

    `step` plans, executes and commits. With overlap one step stays in flight: step k + 1 is
    submitted before step k is collected.

    Attributes:
        scheduler, executor: its parts, with the clock.
        overlap: whether a step stays in flight.

    Args:
        names: the chosen plugins whose arguments requests may carry; host processors are known
            from `host_processors`.
        observers: who watches the steps; see `StepObserver`.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock | None = None,
        overlap: bool = False,
        seed: int = 0,
        host_processors: HostProcessors | None = None,
        names: PluginNames | None = None,
        observers: Sequence[StepObserver] = (),
    ) -> None:
        self._host = host_processors or HostProcessors({}, spec.vocab_size)
        self._names = names = names or PluginNames()
        self._guard = ExecutorGuard(names.executor or f"executor {type(executor).__name__}")
        if overlap and self._guard.capacity(executor).max_in_flight < 2:
            raise ExecutorError(
                f"{self._guard.label} takes one step at a time, overlap needs two; "
                f"set engine.overlap to false"
            )
        super().__init__(
            spec,
            clock or RealClock(),
            scheduler.limits,
            seed=seed,
            plugin_names={*names.all, *self._host.names},
        )
        self.scheduler = scheduler
        self.executor = executor
        self.overlap = overlap
        self._pending: deque[PendingStep] = deque()
        self._can_stride = self._guard.can_stride(executor) and scheduler.strides.are_possible
        self._is_calm = False  # nothing but steps happened since a step that ended nothing
        self._observers = Observers()
        for observer in observers:
            self._observers.add(observer)
        self._bind_calls()

    # -- observers ------------------------------------------------------------------------

    @contextmanager
    def observed_by(self, *observers: StepObserver) -> Generator[None]:
        """Tell these of the steps within the block.

        Raises:
            ObserverError: at the end, when one of them has failed and saw only a part.
        """
        added: list[StepObserver] = []
        try:
            for observer in observers:
                self._observers.add(observer)
                added.append(observer)
            self._bind_calls()
            yield
        finally:
            failures = [self._observers.remove(observer) for observer in added]
            self._bind_calls()
        for failure in failures:
            if failure is not None:
                raise failure

    def _bind_calls(self) -> None:
        """The parts of the work, told to the observers who hear of them; else as they are.

        Those of the engine are functions, not methods: an engine that holds itself would stay.
        """
        around = self._observers.around
        self._add = around("accept", BaseEngine.add_request)
        self._do_step = around("step", Engine._step)
        self._plan_step = around("plan", self.scheduler.plan_step)
        self._submit = around("submit", Engine._submit_plan)
        self._provide = around("provide", Engine._provide_masks)
        self._collect_result = around("collect", Engine._collect_oldest)
        self._commit = around("commit", self.scheduler.commit_step)
        self._take = around("output", Engine._take_finished)
        self._is_calm = False

    # -- requests -------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._is_calm = False
        if not self._observers.received:
            self._add(self, request)
            return
        try:
            self._add(self, request)
        except RequestError as error:
            self._tell_received(request, error)
            raise
        self._tell_received(request, None)

    def _tell_received(self, request: Request, error: RequestError | None) -> None:
        for tell in self._observers.received:
            tell(request, error, self.clock.now() if error else self.scheduler.now)

    def _has_request(self, request_id: str) -> bool:
        return self.scheduler.has_request(request_id)

    def _queue_request(
        self, request: Request, tokens: IntArray, limit: int, index: int, seed: int
    ) -> None:
        self._guard.check(self.executor.check, request)
        arguments = request.arguments.get(self._names.policy)
        self.scheduler.check_arguments(arguments)
        now = self.clock.now()
        sample_ids = [sample_id(request.id, i) for i in range(request.sampling.n)]
        host = self._host.start(request, sample_ids, tokens)
        samples = [
            RequestState(
                request,
                tokens,
                index=index,
                arrival=now if request.arrival is None else request.arrival,
                limit=limit,
                seed=seed,
                sample_index=sample_index,
                host=host,
                salt=self._names.salt(request),
                arguments=arguments,
            )
            for sample_index in range(request.sampling.n)
        ]
        try:
            self.scheduler.add_request(samples, now)
        except BaseException:
            for name in sample_ids:
                self._host.finish_sample(name)
            raise

    def abort_request(self, request_id: str) -> bool:
        return self._finish_for_caller(request_id, FinishReason.ABORT)

    def _finish_sample(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int
    ) -> bool:
        return self._finish_for_caller(request_id, reason, num_tokens, sample_index)

    def _finish_for_caller(
        self,
        request_id: str,
        reason: FinishReason,
        num_tokens: int | None = None,
        sample_index: int | None = None,
    ) -> bool:
        self._is_calm = False
        found = self._finish(request_id, reason, num_tokens=num_tokens, sample_index=sample_index)
        if found:
            for tell in self._observers.finish_requested:
                tell(request_id, reason, num_tokens, sample_index, self.scheduler.now)
        return found

    def _finish(self, request_id: str, reason: FinishReason, **kwargs: Any) -> bool:
        try:
            return self.scheduler.finish_request(request_id, reason, self.clock.now(), **kwargs)
        except BaseException as error:
            self._failure = error
            raise

    def take_finished(self) -> list[RequestOutput]:
        return self._take(self)

    def _take_finished(self) -> list[RequestOutput]:
        finished = self.scheduler.take_finished()
        for output in finished:
            self._host.finish_sample(sample_id(output.id, output.sample_index))
            self._num_finished[output.finish_reason] += 1
            for tell in self._observers.finished:
                tell(output)
        return finished

    @property
    def has_unfinished(self) -> bool:
        return bool(self.scheduler.has_requests or self._pending or self.scheduler.has_finished)

    @property
    def engines(self) -> Sequence[Engine]:
        return (self,)

    def step(self) -> StepOutput:
        return self._do_step(self)

    @property
    def has_strides(self) -> bool:
        """Whether `step_until` may take several steps at once."""
        return self._can_stride and not self._observers.see_every_step

    def step_until(self, until: float) -> StepOutput:
        """A step; in a simulation several at once, where nothing but decoding can happen.

        Results are those of `step`; `report` is of the last one. None of them but the first begins
        at `until`, a time on the clock, or later.
        """
        is_calm, self._is_calm = self._is_calm and len(self._pending) == self.overlap, False
        output = (self._stride(until) if is_calm else None) or self.step()
        self._is_calm = output.report is not None and not output.finished and self.has_strides
        return output

    def _stride(self, until: float) -> StepOutput | None:
        try:
            taken = self.scheduler.strides.take(self.executor, self._guard, self._pending, until)
        except BaseException as error:
            self._failure = error
            raise
        if taken is None:
            return None
        self._num_steps += len(taken[0])
        for tell in self._observers.strode:
            tell(taken[0])
        return StepOutput(finished=[], deltas=[], report=taken[1])

    def _step(self) -> StepOutput:
        if self._failure is not None:
            raise ExecutorError(
                f"the engine failed before ({type(self._failure).__name__}); make a new one"
            ) from self._failure
        output = StepOutput(finished=[], deltas=[])  # a factory costs as much as ten calls
        try:
            plan = self._plan(output)
            if plan is not None:
                self._submit(self, plan)
                while len(self._pending) > 1:
                    self._collect(output)
                if len(plan.host_rows):
                    self._provide(self, plan)
            if self._pending and (plan is None or not self.overlap):
                self._collect(output)
        except BaseException as error:
            self._failure = error
            raise
        output.finished = self._take(self)
        return output

    def _submit_plan(self, plan: StepPlan) -> None:
        self._guard.call("submit", self.executor.submit, plan)
        for tell in self._observers.submitted:
            tell(plan, self.clock.now())

    def _plan(self, output: StepOutput) -> StepPlan | None:
        scheduler, num_before = self.scheduler, self.scheduler.counters.num_preemptions
        now = self.clock.now()
        plan = self._plan_step(now, in_flight=bool(self._pending))
        waited = plan is Wait.FOR_STEP_IN_FLIGHT
        if waited:
            for tell in self._observers.planned:
                tell(None, now)
            scheduler.counters.num_waits += 1
            self._collect(output)
            now = self.clock.now()
            plan = self._plan_step(now, in_flight=False)
        assert not isinstance(plan, Wait)
        for tell in self._observers.planned:
            tell(plan, now)
        if plan is not None:
            num_preempted = scheduler.counters.num_preemptions - num_before
            admitted = admitted_by(plan, scheduler) if plan.new else ()
            self._pending.append(PendingStep(plan, now, num_preempted, int(waited), admitted))
        elif scheduler.has_requests and not self._pending:
            self._check_progress(output)
        return plan

    def _check_progress(self, output: StepOutput) -> None:
        scheduler = self.scheduler
        if output.report is not None or scheduler.has_finished:
            return
        output.wake_at = scheduler.wake()
        if output.wake_at is None:
            raise scheduler.no_progress()

    def _collect(self, output: StepOutput) -> None:
        pending = self._pending.popleft()
        result = self._collect_result(self, pending.plan)
        now = self.clock.now()
        for tell in self._observers.collected:
            tell(pending.plan, result, now)
        output.deltas += self._commit(pending.plan, result, now)
        if len(pending.plan.host_rows):
            self._advance(pending.plan)
        output.report = pending.report(self.scheduler, now)
        self._num_steps += 1

    def _collect_oldest(self, plan: StepPlan) -> StepResult:
        result = self._guard.call("collect", self.executor.collect)
        self._guard.check_result(result, plan)
        return result

    # -- host processors ------------------------------------------------------------------

    def _provide_masks(self, plan: StepPlan) -> None:
        """Masks of the rows that wait for them; the step before has been committed."""
        rows, waiting = self.scheduler.rows, plan.host_rows.tolist()
        bits = self._host.blank(len(waiting))
        # a request that finished meanwhile samples a surplus token, which needs no mask
        sample_ids = [rows.state(row).sample_id if rows.alive[row] else None for row in waiting]
        for i, problem in self._host.mask_rows(sample_ids, bits).items():
            self._fail_on(problem, waiting[i])
        masks = HostMasks(step=plan.step, bits=bits)
        self._guard.call("provide", self.executor.provide, masks)

    def _advance(self, plan: StepPlan) -> None:
        """Tell the processors what was committed of the requests that go on."""
        rows = self.scheduler.rows
        for row in plan.host_rows.tolist():
            if rows.alive[row]:
                last = int(rows.known[row]) - 1
                tokens = rows.tokens[row, last : last + 1].copy()
                self._fail_on(self._host.advance(rows.state(row).sample_id, tokens), row)

    def _fail_on(self, problem: str | None, row: int) -> None:
        """Finish the sample in a row for which a processor failed."""
        if problem is not None:
            state = self.scheduler.rows.state(row)
            index = state.sample_index
            self._finish(state.request.id, FinishReason.ERROR, error=problem, sample_index=index)

    # -- while idle -----------------------------------------------------------------------

    @property
    def is_watchable(self) -> bool:
        return type(self.executor).check_alive is not Executor.check_alive

    def check_alive(self) -> None:
        if self._failure is None and self.is_watchable:
            try:
                self._guard.call("check_alive", self.executor.check_alive)
            except NanofwError as error:
                self._failure = error
                raise

    # -- facts ----------------------------------------------------------------------------

    def executor_facts(self) -> ExecutorFacts:
        """What the executor tells of itself now. Not for steps: it may take a while."""
        return self._guard.facts(self.executor)

    def stats(self) -> Stats:
        return MappingProxyType(
            {
                **asdict(self.scheduler.counters),
                "num_steps": self._num_steps,
                **self._request_stats(),
                "num_running": self.scheduler.num_running,
                "num_waiting": self.scheduler.num_waiting,
                "num_unfinished_tokens": self.scheduler.num_unfinished_tokens,
                "blocks": MappingProxyType(asdict(self.scheduler.allocator.stats())),
            }
        )

    def _close(self) -> None:
        self._guard.call("close", self.executor.close)
