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
    """What an executor tells of itself, for measurements and records. All of it is optional.

    Attributes:
        graph_steps: steps by how they were carried out: `replayed` from graphs, or why not.
        host_phases: seconds that the host has spent so far in the parts of `submit`, by name.
        process_ids: of the processes that compute, where they are others than the engine's.
        start_seconds: what its construction spent its time on, by name, in order.
    """

    graph_steps: Mapping[str, int] = field(default_factory=dict[str, int])
    host_phases: Mapping[str, float] = field(default_factory=dict[str, float])
    process_ids: tuple[int, ...] = ()
    start_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


class Executor(ABC):
    """Base of executors. Constructed as `target(options, ExecutorConfig)`.

    Plans are collected in the order in which they came. Whatever a method raises ends the run, in
    the plugin's name, but for the ValueError of `check`.
    """

    @abstractmethod
    def capacity(self) -> Capacity:
        """What it can hold, known once it is constructed."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> None:
        """Start a step. Returns as soon as it can; at most `max_in_flight` may be pending.

        The plan's arrays do not change any more, and may be kept; they are not to be written.
        """

    @abstractmethod
    def collect(self) -> StepResult:
        """Wait for the oldest pending step. Raises `ExecutorError` when it failed."""

    def check(self, request: Request) -> None:
        """Raise ValueError, naming the allowed values, when it cannot carry out the request."""

    def provide(self, masks: HostMasks) -> None:
        """Let the host rows of the last submitted step sample.

        Called once after `submit` for each plan with host rows, when the step before was
        collected, and never for others.
        """
        raise ExecutorError(f"{type(self).__name__} does not sample among tokens of a mask")

    def stride(self, plan: StepPlan, num_steps: int, until: float) -> Stride | None:
        """Take the plan and steps like it at once: at most `num_steps`, planned before `until`.

        In each of them the same rows decode, one token further; `plan` is the first. The plans name
        no blocks, so this is for executors that simulate. Times, tokens and all that the executor
        is asked later must be those of `submit` and `collect` in turn, step by step. None: the
        steps are taken one by one. Called in a simulation, and only where the class that overrides
        it, or a base class of it, has `submit` and `collect`.
        """
        return None

    def check_alive(self) -> None:
        """Raise an `ExecutorError` when a part of it, such as a process, failed while no step ran.

        Called now and then while idle, where it is overridden; never waits.
        """

    def facts(self) -> ExecutorFacts:
        """What it tells of itself now. Never called in a step."""
        return ExecutorFacts()

    def close(self) -> None:
        """Give back devices and processes. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The chosen plugins that an executor makes itself, each with `Component.make`.

    Only those of the kinds in its capability `needs` are there; the others are None.

    Attributes:
        logits_processors: those of the device, in YAML order.
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
    """Facts that an executor is built with, beside its own options.

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
        overlap, cuda_graphs: whether they are on, resolved.
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
