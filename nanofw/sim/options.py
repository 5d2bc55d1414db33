"""Options of the simulated executor."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from nanofw.plugins import Options


class SimOptions(Options):
    """`executor: {name: sim, ...}`; `executor.cost_model` names the cost model."""

    seconds_per_step: NonNegativeFloat = 0.01
    """Time of every step, if no cost model is named."""
    max_in_flight: Annotated[int, Field(ge=1, le=8)] = 2
    """Steps that may be submitted before the first is collected."""
    eos_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Chance that a sampled token is the model's end token; 0: never."""
    failure_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """For tests: chance that a row fails in a step, as if its logits were NaN."""
    check_context: bool = False
    """For tests, slow: simulate the content of the KV pool, sample each token from the whole
    context as the block table shows it, and refuse plans that break the protocol."""
