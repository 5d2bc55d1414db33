"""Contract `executor/1` (experimental): who carries out the plans.

An executor owns everything that the plans change: token ids, block tables and sampling state
of each row, the KV pool, the weights. It holds neither the engine nor the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from nanofw.contracts.clock import Clock
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request


@runtime_checkable
class Executor(Protocol):
    """Implemented by executors. Plans are collected in the order in which they came."""

    def capacity(self) -> Capacity:
        """What it can hold, known once it is constructed."""
        ...

    def check(self, request: Request) -> None:
        """Raise ValueError, naming the allowed values, when it cannot carry out the request."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Start a step. Returns as soon as it can; at most `max_in_flight` may be pending.

        The plan's arrays belong to the executor from here on.
        """
        ...

    def provide(self, masks: HostMasks) -> None:
        """Let the host rows of the last submitted step sample.

        Called once after `submit` for each plan with host rows, when the step before was
        collected, and never for others.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest pending step. Raises `ExecutorError` when it failed."""
        ...

    def close(self) -> None:
        """Give back devices and processes. Idempotent."""
        ...


@runtime_checkable
class WatchableExecutor(Protocol):
    """An executor whose parts, such as processes, may fail while no step runs. Optional."""

    def check_alive(self) -> None:
        """Raise a `NanofwError` when one of them has failed. Called while idle; never waits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """Facts that an executor is built with, beside its own options.

    Attributes:
        spec: the model.
        block_size: tokens in a KV block, resolved by the capabilities.
        num_blocks: blocks in the pool; None: as many as fit.
        clock: the engine's clock; a simulated executor moves it.
        engine: the validated `engine` section of the configuration.
        components: what the executor builds itself, by kind: a `Component` (descriptor and
            validated options) for model, attention_backend, sampler, cost_model; a list of
            them, in YAML order, for logits_processor. Only the kinds in its capability `needs`.
        device: where it runs, resolved: `cpu`, `cuda`, `cuda:1`.
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
    engine: Any
    components: dict[str, Any]
    device: str = "cpu"
    overlap: bool = False
    cuda_graphs: bool = False
    prefill_graphs: bool = False
