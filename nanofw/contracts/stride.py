"""Several steps at once, where the steps between would change nothing but times and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.contracts.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """k consecutive steps. In each step the same n rows decode one more token.

    The number of steps in flight is the same before and after the stride. So the last steps of the
    stride may be collected after it, and the first steps that it collects may have been planned
    before it.

    Attributes:
        step: number of the first plan.
        rows: int32[n], as in the previous plan.
        starts: int32[n], the rows' positions in the first plan.
        planned: k times in seconds on the engine's clock, at which the plans were made.
        submitted: k times, at which the plans had been given to the executor.
        collected: k times, at which steps were collected.
        token_ids: int32[k, n], tokens of the steps that were collected.
        num_in_flight: number of steps in flight, before and after.
    """

    step: int
    rows: IntArray
    starts: IntArray
    planned: list[float]
    submitted: list[float]
    collected: list[float]
    token_ids: IntArray
    num_in_flight: int = 0

    def __len__(self) -> int:
        return len(self.planned)
