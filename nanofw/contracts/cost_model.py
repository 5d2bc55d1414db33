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
        """Time that the device is busy with the plan. Called once for each plan, in order.

        The plan is not changed and not kept. A step should cost a few microseconds here: a
        long simulation asks millions of times.
        """
        ...

    def kv_bytes(self) -> int | None:
        """Memory that the device has for keys and values; None: the model does not know."""
        ...


@runtime_checkable
class OccupiesHost(Protocol):
    """A cost model that also knows how long the host is busy until a step is on its way."""

    def host_seconds(self, plan: StepPlan) -> float:
        """Time to take over the step before, to plan and to submit. Asked once, before `seconds`.

        The device may begin at once, but is not done before the host is; with a step in flight
        it works on that one meanwhile.
        """
        ...


@runtime_checkable
class SteadyCostModel(Protocol):
    """A cost model that knows the times of many steady steps at once."""

    def steady_seconds(
        self, plan: StepPlan, num_steps: int
    ) -> tuple[FloatArray | None, FloatArray]:
        """What `host_seconds` and `seconds` would answer for the plan and those after it.

        float64[num_steps] both; None for a model that does not occupy the host. In each of these
        steps the rows of the plan before decode, one token further. Changes nothing: the plans
        that come next follow as if `seconds` had been asked for as many of these steps as their
        numbers say.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelConfig:
    """Facts that a cost model is built with, beside its options.

    Attributes:
        spec: the model whose steps are timed.
        memory_utilization: share of the device's memory that a run may take.
    """

    spec: ModelSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_utilization: float = 0.9
