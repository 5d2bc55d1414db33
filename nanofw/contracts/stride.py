"""Several steps at once, where the steps between would change nothing but times and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.contracts.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """k steps after each other; in each, the same n rows decode one more token.

    As many steps are in flight after it as before it: its last steps may be collected later, and
    the first ones that were collected may have been planned before.

    Attributes:
        step: number of the first plan.
        rows: int32[n], as in the plan before.
        starts: int32[n], the rows' positions in the first plan.
        planned, submitted, collected: k times each, in seconds on the engine's clock: when the
            plans were made, when they had been given to the executor, when k steps were collected.
        token_ids: int32[k, n], tokens of the steps that were collected.
        num_in_flight: steps in flight, before as after.
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
