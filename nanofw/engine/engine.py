"""The engine: requests in, token ids out. It knows nothing of text, HTTP or devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from nanofw.contracts.clock import Clock, RealClock
from nanofw.contracts.executor import Executor, WatchableExecutor
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.outputs import RequestOutput, StepOutput, StepReport
from nanofw.contracts.plan import HostMasks, StepPlan
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine import request_checks
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.request_state import RequestState, derive_seed, sample_id
from nanofw.engine.scheduler import Scheduler, Wait
from nanofw.errors import ExecutorError, NanofwError, PolicyError, RequestError


@dataclass(frozen=True, slots=True)
class _PendingStep:
    """A submitted step and what will be reported of it."""

    plan: StepPlan
    planned: float
    num_preemptions: int
    num_waits: int


class Engine:
    """A scheduler, an executor and a clock.

    `step` plans, executes and commits. With overlap one step stays in flight: step k + 1 is
    submitted before step k is collected.

    Attributes:
        spec: the model's description.
        scheduler, executor, clock: its parts.
        overlap: whether a step stays in flight.

    Args:
        processor_names: the chosen logits processors on the device, whose arguments requests
            may carry; those on the host are known from `host_processors`.
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
        processor_names: tuple[str, ...] = (),
    ) -> None:
        if overlap and executor.capacity().max_in_flight < 2:
            raise ExecutorError(
                f"executor {type(executor).__name__} takes one step at a time, overlap needs two; "
                f"set engine.overlap to false"
            )
        self.spec = spec
        self.scheduler = scheduler
        self.executor = executor
        self.clock: Clock = clock or RealClock()
        self.overlap = overlap
        self._host = host_processors or HostProcessors({}, spec.vocab_size)
        self._processor_names = {*processor_names, *self._host.names}
        self._seed = seed
        self._num_submitted = 0
        self._pending: deque[_PendingStep] = deque()
        self._num_finished = dict.fromkeys(FinishReason, 0)
        self._num_steps = 0
        self._failure: BaseException | None = None
        self._closed = False

    # -- requests -------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise `RequestError` with the reason why it is refused.

        A refused request changes nothing but the submission index of those after it.
        """
        index = self._num_submitted
        self._num_submitted += 1
        try:
            self._queue(self._accept(request, index))
        except (ValueError, PolicyError) as error:
            self._num_finished[FinishReason.REFUSED] += 1
            raise RequestError(str(request.id), str(error)) from error

    def _queue(self, samples: list[RequestState]) -> None:
        try:
            self.scheduler.add_request(samples, self.clock.now())
        except PolicyError:
            for state in samples:
                self._host.finish(state.sample_id)
            raise

    def _accept(self, request: Request, index: int) -> list[RequestState]:
        request_checks.check_id(request.id)
        if self.scheduler.has_request(request.id):
            raise ValueError(
                "a request of this id is waiting or running, or its output was not handed out "
                "yet; ids must be unique"
            )
        tokens = request_checks.prompt_tokens(request.prompt_token_ids, self.spec.vocab_size)
        request_checks.check_sampling(request.sampling, self.spec.vocab_size)
        request_checks.check_fields(request)
        request_checks.check_arguments(request, self._processor_names)
        limit = request_checks.token_limit(len(tokens), request.sampling, self.scheduler.limits)
        self.executor.check(request)
        seed = request.sampling.seed
        seed = derive_seed(self._seed, index) if seed is None else int(seed)
        arrival = self.clock.now() if request.arrival is None else request.arrival
        sample_ids = [sample_id(request.id, i) for i in range(request.sampling.n)]
        host = self._host.start(request, sample_ids, tokens)
        return [
            RequestState(
                request,
                tokens,
                index=index,
                arrival=arrival,
                limit=limit,
                seed=seed,
                sample_index=sample_index,
                host=host,
            )
            for sample_index in range(request.sampling.n)
        ]

    def abort_request(self, request_id: str) -> bool:
        """Finish a request in whatever state it is; its output comes with the next step.

        Returns whether there was one.
        """
        return self._finish(request_id, FinishReason.ABORT)

    def finish_request(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int = 0
    ) -> bool:
        """Finish a sample at `num_tokens` generated tokens, for a stop string found outside.

        Tokens past them reach neither output nor counters. Its output comes with the next
        step. Returns whether it was still live. Raises ValueError when `num_tokens` is negative.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens is {num_tokens}; it must be at least 0")
        return self._finish(request_id, reason, num_tokens=num_tokens, sample_index=sample_index)

    def _finish(self, request_id: str, reason: FinishReason, **kwargs: Any) -> bool:
        return self.scheduler.finish_request(request_id, reason, self.clock.now(), **kwargs)

    def take_finished(self) -> list[RequestOutput]:
        """Outputs that no step handed out: after a failed step, what had finished before it."""
        finished = self.scheduler.take_finished()
        for output in finished:
            self._host.finish(sample_id(output.id, output.sample_index))
            self._num_finished[output.finish_reason] += 1
        return finished

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` still has something to do or to say."""
        return bool(self.scheduler.has_requests or self._pending or self.scheduler.has_finished)

    @property
    def has_failed(self) -> bool:
        """Whether a step failed, so that no other is possible."""
        return self._failure is not None

    # -- the step -------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Plan, execute, commit. Does nothing when there are no requests.

        Raises `PolicyError`, `AllocatorError` or `ExecutorError` when the run cannot go on;
        it cannot be stepped again afterwards, and `take_finished` has what was finished.
        """
        if self._failure is not None:
            raise ExecutorError(
                f"the engine failed before ({type(self._failure).__name__}); make a new one"
            ) from self._failure
        output = StepOutput()
        try:
            self._step(output)
        except BaseException as error:
            self._failure = error
            raise
        output.finished = self.take_finished()
        return output

    def _step(self, output: StepOutput) -> None:
        plan = self._plan(output)
        if plan is not None:
            self.executor.submit(plan)
            while len(self._pending) > 1:
                self._collect(output)
            if len(plan.host_rows):
                self._provide(plan)
        if self._pending and (plan is None or not self.overlap):
            self._collect(output)

    def _plan(self, output: StepOutput) -> StepPlan | None:
        scheduler, num_before = self.scheduler, self.scheduler.counters.num_preemptions
        now = self.clock.now()
        plan = scheduler.plan_step(now, in_flight=bool(self._pending))
        waited = plan is Wait.FOR_STEP_IN_FLIGHT
        if waited:
            scheduler.counters.num_waits += 1
            self._collect(output)
            now = self.clock.now()
            plan = scheduler.plan_step(now, in_flight=False)
        assert not isinstance(plan, Wait)
        if plan is not None:
            num_preempted = scheduler.counters.num_preemptions - num_before
            self._pending.append(_PendingStep(plan, now, num_preempted, int(waited)))
        elif scheduler.has_requests and not self._pending:
            self._check_progress(output)
        return plan

    def _check_progress(self, output: StepOutput) -> None:
        scheduler = self.scheduler
        if output.report is not None or scheduler.has_finished:
            return
        raise PolicyError(
            f"scheduler {type(scheduler.policy).__name__}: nothing runs and no request is "
            f"admitted, so nothing can ever change: {scheduler.num_waiting} waiting, "
            f"{scheduler.num_running} running, {scheduler.allocator.num_available} of "
            f"{scheduler.limits.num_blocks} blocks available"
        )

    def _collect(self, output: StepOutput) -> None:
        pending = self._pending.popleft()
        result = self.executor.collect()
        now = self.clock.now()
        if result.step != pending.plan.step:
            raise ExecutorError(
                f"executor {type(self.executor).__name__} answered step {result.step} when "
                f"{pending.plan.step} was due"
            )
        output.deltas += self.scheduler.commit_step(pending.plan, result, now)
        if len(pending.plan.host_rows):
            self._advance(pending.plan)
        output.report = self._report(pending, now)
        self._num_steps += 1

    def _report(self, pending: _PendingStep, now: float) -> StepReport:
        scheduler, plan = self.scheduler, pending.plan
        return StepReport(
            step=plan.step,
            num_prefill_tokens=plan.total_tokens - plan.num_decodes,
            num_decode_tokens=plan.num_decodes,
            num_rows=len(plan.rows),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_used_blocks=scheduler.limits.num_blocks - scheduler.allocator.num_available,
            num_preemptions=pending.num_preemptions,
            num_waits=pending.num_waits,
            planned=pending.planned,
            committed=now,
        )

    # -- host processors ------------------------------------------------------------------

    def _provide(self, plan: StepPlan) -> None:
        """Masks of the rows that wait for them; the step before has been committed."""
        rows, waiting = self.scheduler.rows, plan.host_rows.tolist()
        bits = self._host.blank(len(waiting))
        # a request that finished meanwhile samples a surplus token, which needs no mask
        sample_ids = [rows.state(row).sample_id if rows.alive[row] else None for row in waiting]
        for i, problem in self._host.mask_rows(sample_ids, bits).items():
            self._fail_on(problem, waiting[i])
        self.executor.provide(HostMasks(step=plan.step, bits=bits))

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
        """Whether it can fail while idle, so that `check_alive` is worth a call now and then."""
        return isinstance(self.executor, WatchableExecutor)

    def check_alive(self) -> None:
        """Raise what ended the executor while no step ran, if anything did; returns at once."""
        if self._failure is None and isinstance(self.executor, WatchableExecutor):
            try:
                self.executor.check_alive()
            except NanofwError as error:
                self._failure = error
                raise

    # -- facts ----------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, by name; see `Counters` and `AllocatorStats`."""
        allocator = asdict(self.scheduler.allocator.stats())
        return MappingProxyType(
            {
                **asdict(self.scheduler.counters),
                "num_steps": self._num_steps,
                "num_submitted": self._num_submitted,
                "num_running": self.scheduler.num_running,
                "num_waiting": self.scheduler.num_waiting,
                "num_unfinished_tokens": self.scheduler.num_unfinished_tokens,
                "num_finished": MappingProxyType(
                    {reason.value: count for reason, count in self._num_finished.items()}
                ),
                "blocks": MappingProxyType(allocator),
            }
        )

    def close(self) -> None:
        """Give back the executor's devices and processes. Idempotent."""
        if not self._closed:
            self._closed = True
            self.executor.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
