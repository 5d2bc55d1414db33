"""Executor `torch`: carries out plans on a CPU or an accelerator.

`submit` enqueues a step and returns; on an accelerator nothing waits before `collect`. Sampled
tokens are written to the rows' token table on the device, where the next step reads them, so
that two steps may be in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

import torch
from torch.autograd import profiler

from nanofw.contracts.communicator import Communicator, SingleRank
from nanofw.contracts.executor import Executor, ExecutorConfig, ExecutorFacts
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.errors import ExecutorError, NanofwError
from nanofw.kernels.aot.start import start_compiling
from nanofw.plugin_calls import is_named
from nanofw.runtime import profiling, sizing
from nanofw.runtime.batch import StepBatch
from nanofw.runtime.blame import step_error
from nanofw.runtime.graphs.capture import CudaCapturer
from nanofw.runtime.graphs.sizes import largest_prefill
from nanofw.runtime.memory import gib
from nanofw.runtime.options import TorchOptions
from nanofw.runtime.parallel.executor import ParallelExecutor
from nanofw.runtime.parallel.messages import RankLost
from nanofw.runtime.phases import Phases
from nanofw.runtime.results import Timer, Transfer
from nanofw.runtime.runner import Runner
from nanofw.runtime.threads import settle_threads

if TYPE_CHECKING:
    from nanofw.kernels.aot.compiler import AheadCompiler

logger: logging.Logger = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 2
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Step:
    """A submitted step; `hidden` is there while it waits for masks, `transfer` after."""

    plan: StepPlan
    batch: StepBatch
    timer: Timer
    hidden: torch.Tensor | None = None
    transfer: Transfer | None = None


class TorchExecutor(Executor):
    """Constructed as `TorchExecutor(options, config)`; loads the weights and sizes the pool.

    With a communicator of several ranks it is one of them: all get the same plans, and their
    pools have the same number of blocks.
    """

    def __init__(
        self,
        options: TorchOptions | None,
        config: ExecutorConfig,
        communicator: Communicator | None = None,
    ) -> None:
        communicator = communicator or SingleRank()
        self._steps: deque[_Step] = deque()
        self._next_step = 0
        self._runner: Runner | None = None
        self._host_phases: dict[str, float] = {"apply": 0.0, "forward": 0.0, "sample": 0.0}
        num_threads = None if options is None else options.num_threads
        if num_threads is not None or (config.device == "cpu" and communicator.size == 1):
            settle_threads(num_threads)
        phases = Phases()
        prefill_tokens = largest_prefill(options, config)
        threads = options.compile_threads if options is not None else None
        steps = partial(profiling.carry_out_steps, prefill_tokens=prefill_tokens)
        ahead = start_compiling(config, communicator, steps, threads)
        try:
            num_blocks = self._start(config, communicator, prefill_tokens, phases, ahead)
        finally:
            if ahead is not None:
                ahead.cancel()
        self._start_seconds = phases.seconds
        self._capacity = Capacity(
            num_blocks=num_blocks, block_size=config.block_size, max_in_flight=_MAX_IN_FLIGHT
        )

    @torch.inference_mode()
    def _start(
        self,
        config: ExecutorConfig,
        communicator: Communicator,
        prefill_tokens: int,
        phases: Phases,
        ahead: AheadCompiler | None,
    ) -> int:
        """Load, size the pool, capture; returns the number of blocks."""
        self._runner = runner = Runner(config, communicator)
        phases.end_phase("weights")
        if ahead is not None:
            ahead.close()
            phases.end_phase("waiting for compilers")
        try:
            return self._make_room(runner, config, communicator, prefill_tokens, phases)
        except MemoryError:
            raise
        except BaseException as error:
            self._fail("the start failed", error)

    def _make_room(
        self,
        runner: Runner,
        config: ExecutorConfig,
        communicator: Communicator,
        prefill_tokens: int,
        phases: Phases,
    ) -> int:
        num_blocks = sizing.num_blocks(runner, config, communicator, prefill_tokens)
        phases.end_phase("memory profile")
        runner.allocate(num_blocks)
        phases.end_phase("KV pool")
        graph_bytes = -_held_bytes(runner.device)
        if config.cuda_graphs and runner.device.type == "cuda":
            runner.capture(CudaCapturer(), prefill_tokens)
            torch.cuda.empty_cache()  # what ran before it was captured
            phases.end_phase("graphs")
        graph_bytes += _held_bytes(runner.device)
        logger.info(
            "rank %d on %s holds weights of %s, CUDA graphs of %s, and KV of %s: %s tokens",
            communicator.rank, runner.device, gib(runner.weight_bytes), gib(graph_bytes),
            gib(num_blocks * runner.bytes_per_block), f"{num_blocks * config.block_size:,}",
        )  # fmt: skip
        return num_blocks

    def capacity(self) -> Capacity:
        """The pool's size, as configured or as memory allows."""
        return self._capacity

    @property
    def weight_bytes(self) -> int:
        """Bytes of this rank's parameters."""
        return self._open().weight_bytes

    def facts(self) -> ExecutorFacts:
        """Steps replayed from CUDA graphs, those among them with prefill, and the others by
        reason; seconds of the parts of `submit` and of the start."""
        graphs = None if self._runner is None else self._runner.graphs
        return ExecutorFacts(
            graph_steps={} if graphs is None else graphs.counts,
            host_phases=dict(self._host_phases),
            start_seconds=self._start_seconds,
        )

    def check(self, request: Request) -> None:
        """Raise ValueError when a component cannot do what is asked."""
        self._open().check(request)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> None:
        """Apply the plan and run the model; sample too, unless rows wait for masks."""
        runner = self._open()
        self._check_order(plan)
        timer, phases, begin = Timer(runner.device), self._host_phases, perf_counter()
        try:
            run = _in_span if profiler._is_profiler_enabled else _plainly
            run("apply", runner.apply, plan)
            applied = perf_counter()
            batch, hidden = run("forward", runner.forward, plan)
            forwarded = perf_counter()
            step = _Step(plan, batch, timer, hidden=hidden)
            if not len(plan.host_rows):
                run("sample", self._sample, step, None)
        except BaseException as error:
            self._fail(f"step {plan.step} failed", error)
        phases["apply"] += applied - begin
        phases["forward"] += forwarded - applied
        phases["sample"] += perf_counter() - forwarded
        self._steps.append(step)
        self._next_step += 1

    @torch.inference_mode()
    def provide(self, masks: HostMasks) -> None:
        """Sample the step that waits, host rows among their allowed tokens."""
        step = self._steps[-1] if self._steps else None
        if step is None or step.hidden is None or step.plan.step != masks.step:
            raise ExecutorError(
                f"masks of step {masks.step} came, but the last submitted step does not wait for "
                "them: provide once, after submit, and only for plans with host rows"
            )
        try:
            self._sample(step, masks)
        except BaseException as error:
            self._fail(f"step {masks.step} failed while sampling", error)

    def collect(self) -> StepResult:
        """Wait for the oldest step and hand out its tokens."""
        if not self._steps:
            raise ExecutorError("collect without a submitted step")
        step = self._steps[0]
        if step.transfer is None:
            raise ExecutorError(f"step {step.plan.step} waits for masks: call provide first")
        self._steps.popleft()
        try:
            token_ids, failed = step.transfer.wait()
        except RuntimeError as error:  # CUDA reports here what went wrong earlier
            self._fail(f"step {step.plan.step} failed", error)
        self._open().plugins.check_ids(token_ids)
        return StepResult(
            step=step.plan.step,
            token_ids=token_ids,
            failed=failed if failed.any() else None,
            logprobs=step.transfer.logprobs(),
            prompt_logprobs=step.transfer.prompt_logprobs(),
            embeddings=step.transfer.embeddings(),
            seconds=step.timer.seconds(),
        )

    def close(self) -> None:
        """Forget steps, weights and pool. Idempotent."""
        self._steps.clear()
        runner, self._runner = self._runner, None
        if runner is not None and runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)
            del runner
            torch.cuda.empty_cache()

    def _sample(self, step: _Step, masks: HostMasks | None) -> None:
        assert step.hidden is not None
        sampled = self._open().step_sampler.sample(
            step.batch, step.hidden, masks, step.plan.host_rows
        )
        step.hidden = None
        step.timer.stop()
        batch = step.batch
        step.transfer = Transfer(sampled, batch.logprobs, batch.prompt_logprobs, batch.embeddings)

    def _open(self) -> Runner:
        if self._runner is None:
            raise ExecutorError("the executor is closed")
        return self._runner

    def _fail(self, what: str, error: BaseException) -> NoReturn:
        """Raise the error in the name of the component that is to blame.

        What says so already, and errors of our own that come from no component, stay as they are.
        """
        if isinstance(error, (KeyboardInterrupt, RankLost)) or is_named(error):
            raise error
        told = step_error(what, error, self._open().parts)
        if isinstance(error, NanofwError) and not told.plugin:
            raise error
        raise told from error

    def _check_order(self, plan: StepPlan) -> None:
        if plan.step != self._next_step:
            raise ExecutorError(f"plan {plan.step} came where plan {self._next_step} was due")
        if len(self._steps) >= _MAX_IN_FLIGHT:
            raise ExecutorError(
                f"plan {plan.step} is one more than the {_MAX_IN_FLIGHT} that may be in flight: "
                "collect first"
            )
        if self._steps and self._steps[-1].transfer is None:
            raise ExecutorError(
                f"plan {plan.step} came while step {self._steps[-1].plan.step} waits for masks"
            )


def _held_bytes(device: torch.device) -> int:
    """Bytes of a GPU that this process has taken, free ones of PyTorch's allocator included."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def torch_executor(options: TorchOptions | None, config: ExecutorConfig) -> Executor:
    """The target of the plugin: one rank computes in this process, several in one process each."""
    if config.tensor_parallel_size > 1:
        return ParallelExecutor(options, config)
    return TorchExecutor(options, config)


def probe(device: str, options: object) -> dict[str, object] | str:
    """What `auto` and `explain` ask: whether this machine has the device."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        return "PyTorch finds no CUDA device here"
    return {}


def _plainly(name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return method(*args, **kwargs)


def _in_span(name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a part of `submit` as a span of PyTorch's profiler, which runs."""
    with profiler.record_function(f"nanofw.submit.{name}"):
        return method(*args, **kwargs)
