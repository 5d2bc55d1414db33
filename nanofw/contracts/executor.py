"""Contract `executor/2` (experimental): what carries out the plans.

An executor owns everything that the plans change: token ids, block tables and sampling state
of each row, the KV pool, the weights. It holds neither the engine nor the scheduler. The ordinary
case takes one step at a time:

    class Mine(Executor):
        def __init__(self, options, config): self._device = Device(config)
        def capacity(self): return Capacity(num_blocks=512, block_size=self._device.block_size)
        def submit(self, plan): self._device.start(plan)
        def collect(self): return self._device.result()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nanofw.contracts.clock import Clock
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.contracts.stride import Stride
from nanofw.errors import ExecutorError

if TYPE_CHECKING:
    from nanofw.plugins.component import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFacts:
    """Facts about an executor, for measurements and records. All of them are optional.

    Attributes:
        graph_steps: numbers of steps by name: `replayed` counts those that were replayed from
            graphs; each other name is a reason why steps were not replayed.
        host_phases: seconds that the host has spent so far in the parts of `submit`, by name.
        process_ids: ids of the processes that compute, if these are not the engine's process.
        start_seconds: seconds of the parts of its construction, by name, in order.
    """

    graph_steps: Mapping[str, int] = field(default_factory=dict[str, int])
    host_phases: Mapping[str, float] = field(default_factory=dict[str, float])
    process_ids: tuple[int, ...] = ()
    start_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


class Executor(ABC):
    """Base of executors. Constructed as `target(options, ExecutorConfig)`.

    Plans are collected in the order in which they came. An exception in a method ends the run, and
    the error names the plugin; only a ValueError in `check` refuses a single request.
    """

    @abstractmethod
    def capacity(self) -> Capacity:
        """What it can hold. Called once, after it was constructed."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> None:
        """Start a step. Returns as soon as it can; at most `max_in_flight` may be pending.

        The plan's arrays do not change any more. You may keep them, but must not write to them.
        """

    @abstractmethod
    def collect(self) -> StepResult:
        """Wait for the oldest pending step. Raises `ExecutorError` if the step failed."""

    def check(self, request: Request) -> None:
        """Raise ValueError, naming the allowed values, if it cannot carry out the request."""

    def provide(self, masks: HostMasks) -> None:
        """Let the host rows of the last submitted step sample.

        Called once after `submit` for each plan that has host rows, after the previous step was
        collected. It is not called for other plans.
        """
        raise ExecutorError(f"{type(self).__name__} does not sample among tokens of a mask")

    def stride(self, plan: StepPlan, num_steps: int, until: float) -> Stride | None:
        """Carry out at most `num_steps` similar steps at once, all planned before `until`.

        `plan` is the first of these steps. In each of them the same rows decode one more token. The
        plans name no blocks, so this is for executors that simulate. The times, the tokens and all
        later answers must be the same as if `submit` and `collect` had been called for each step.
        None: the steps are taken one by one. It is called only in a simulation. If a class defines
        `stride`, and a subclass of it overrides `submit` or `collect`, `stride` is not called.
        """
        return None

    def check_alive(self) -> None:
        """Raise an `ExecutorError` if a part of it, such as a process, failed while no step ran.

        Called now and then while the engine is idle, if it is overridden. It must not wait.
        """

    def facts(self) -> ExecutorFacts:
        """Facts about the executor, as they are now. It is never called during a step."""
        return ExecutorFacts()

    def close(self) -> None:
        """Give back devices and processes. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The chosen plugins that an executor constructs itself, each with `Component.make`.

    The executor gets only the kinds that its capability `needs` lists. The other fields are None.

    Attributes:
        logits_processors: those that run on the device, in YAML order.
    """

    model: Component | None = None
    attention_backend: Component | None = None
    sampler: Component | None = None
    cost_model: Component | None = None
    logits_processors: tuple[Component, ...] = ()

    def required(self, kind: Literal["model", "attention_backend", "sampler"]) -> Component:
        """The component of a kind that the executor cannot do without."""
        found: Component | None = getattr(self, kind)
        if found is None:
            raise ExecutorError(f"no {kind} was chosen; does the executor's `needs` name it?")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """Facts that an executor is constructed with, beside its options.

    Attributes:
        name: what the configuration calls it.
        spec: the model.
        block_size: tokens in a KV block, resolved by the capabilities.
        num_blocks: blocks in the pool; None: as many as fit.
        max_num_seqs: rows that run at once.
        max_num_batched_tokens: tokens in a step.
        max_model_len: tokens of a request, prompt included.
        clock: the engine's clock; a simulated executor moves it.
        components: what it makes itself.
        device: where it runs, resolved: `cpu`, `cuda`, `cuda:1`.
        tensor_parallel_size: ranks that share each layer.
        memory_utilization: share of the device's memory that the run may take.
        overlap: whether overlap is on, resolved.
        cuda_graphs: whether CUDA graphs are on, resolved.
        prefill_graphs: whether steps with prefill may be captured too, resolved.
    """

    spec: ModelSpec
    block_size: int
    num_blocks: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    clock: Clock
    components: Components = field(default_factory=Components)
    device: str = "cpu"
    tensor_parallel_size: int = 1
    memory_utilization: float = 0.9
    overlap: bool = False
    cuda_graphs: bool = False
    prefill_graphs: bool = False
    name: str = ""
