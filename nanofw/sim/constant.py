"""Cost model `constant`: every step takes the same time, or a price per token on top."""

from __future__ import annotations

import numpy as np
from pydantic import NonNegativeFloat

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.cost_model import CostModelConfig
from nanofw.contracts.plan import StepPlan
from nanofw.plugins import Options


class ConstantOptions(Options):
    """`cost_model: {name: constant, ...}`."""

    seconds_per_step: NonNegativeFloat = 0.01
    """Time of every step."""
    seconds_per_token: NonNegativeFloat = 0.0
    """Time that is added for each token that the step computes."""


class ConstantCost:
    """For tests, and for queues whose answer is known in closed form."""

    def __init__(self, options: ConstantOptions, config: CostModelConfig) -> None:
        self._step, self._token = options.seconds_per_step, options.seconds_per_token

    def seconds(self, plan: StepPlan) -> float:
        return self._step + self._token * plan.total_tokens if self._token else self._step

    def steady_seconds(self, plan: StepPlan, num_steps: int) -> tuple[None, FloatArray]:
        return None, np.full(num_steps, self.seconds(plan))

    def kv_bytes(self) -> int | None:
        return None
