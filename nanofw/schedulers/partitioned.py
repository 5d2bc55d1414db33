"""Partitioned: short and long requests each have a share of their own.

Short requests neither wait behind a long queue nor push the long ones out: classes by prompt
length divide the service by weight, and a long prefill leaves the rest of a step's tokens to
others. After workload-partitioned shortest job first (arXiv 2601.21758).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from nanofw.plugins import Options, RequestView, SchedulerConfig, SchedulerView
from nanofw.schedulers.service import WeightedService


class PartitionedOptions(Options):
    """`scheduler: {name: partitioned, ...}`."""

    limits: Annotated[tuple[int, ...], Field(min_length=1)] = (512,)
    """Longest prompt of each class except the last, in rising order."""
    shares: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)] = (0.5, 0.5)
    """Share of the service that each class has while all of them wait."""
    order: Literal["fcfs", "shortest"] = "shortest"
    """Who is first within a class."""
    ageing: NonNegativeFloat = 0.0
    """With `order: shortest`, prompt tokens that each second of waiting takes off."""
    output_weight: PositiveFloat = 2.0
    """How much a generated token counts; a prompt token counts 1."""

    @model_validator(mode="after")
    def _check(self) -> PartitionedOptions:
        if list(self.limits) != sorted(set(self.limits)) or self.limits[0] < 1:
            raise ValueError("limits must be positive and rising")
        if len(self.shares) != len(self.limits) + 1:
            classes, given = len(self.limits) + 1, len(self.shares)
            raise ValueError(f"limits make {classes} classes, but there are {given} shares")
        return self


class Partitioned(WeightedService):
    """One queue per class of prompt lengths; the class served least for its share is next."""

    def __init__(self, options: PartitionedOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(options, config, input_cost=1.0, output_cost=options.output_weight)
        self._options = options
        self._shares = [share / sum(options.shares) for share in options.shares]

    def key(self, request: RequestView, view: SchedulerView) -> float:
        if self._options.order == "fcfs":
            return request.arrival
        return request.num_prompt_tokens + self._options.ageing * request.arrival

    def group(self, request: RequestView) -> int:
        return bisect_left(self._options.limits, request.num_prompt_tokens)

    def weight(self, group: Hashable) -> float:
        return self._shares[int(str(group))]

    def chunk(self, request: RequestView, view: SchedulerView) -> int | None:
        """A prefill leaves the shares of shorter classes that wait."""
        kept = sum(self._shares[c] for c in range(self.group(request)) if self.num_waiting(c))
        return max(1, int((1 - kept) * view.budget)) if kept else None
