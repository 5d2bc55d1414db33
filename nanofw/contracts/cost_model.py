"""Contract `cost_model/1` (experimental): how long a simulated step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.plan import StepPlan


@runtime_checkable
class CostModel(Protocol):
    """Implemented by cost models. Constructed as `target(options, CostModelConfig)`."""

    def seconds(self, plan: StepPlan) -> float:
        """Seconds that the device needs for the plan. Called once for each plan, in order.

        Do not change or keep the plan. A call should take a few microseconds: a long simulation
        makes millions of calls.
        """
        ...

    def kv_bytes(self) -> int | None:
        """Bytes of memory that the device has for keys and values; None: not known."""
        ...


@runtime_checkable
class OccupiesHost(Protocol):
    """A cost model that also knows how long the host is busy until a step is on its way."""

    def host_seconds(self, plan: StepPlan) -> float:
        """Time that the host needs to process the previous step, and to plan and submit this one.

        Called once for each plan, before `seconds`. The device may begin with this step at once,
        but does not finish it before the host has finished its part. If another step is in flight,
        the device works on that step in the meantime.
        """
        ...


@runtime_checkable
class SteadyCostModel(Protocol):
    """A cost model that knows the times of many steady steps at once."""

    def steady_seconds(
        self, plan: StepPlan, num_steps: int
    ) -> tuple[FloatArray | None, FloatArray]:
        """What `host_seconds` and `seconds` would answer for this plan and for the plans after it.

        Both arrays are float64[num_steps]. The first is None if the model does not occupy the host.
        In each step the rows of the step before decode one more token. The call changes no state.
        Perhaps only some of these steps are used. The number of the next plan says how many; the
        model behaves as if `seconds` had been called for each of them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelConfig:
    """Facts that a cost model is constructed with, beside its options.

    Attributes:
        spec: the model whose steps are timed.
        max_num_seqs: rows of a step, at most.
        max_num_batched_tokens: tokens of a step, at most.
        max_model_len: tokens of a request, at most.
        memory_utilization: share of the device's memory that a run may take.
    """

    spec: ModelSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_utilization: float = 0.9
