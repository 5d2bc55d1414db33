"""Rows that ask for the pooled hidden states of their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, LongArray
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.contracts.requests import Pooling


@dataclass(slots=True)
class _PooledRow:
    """A row on the way through its prompt.

    Attributes:
        total: float32[hidden], of the states that count so far; None: there was none.
    """

    pooling: Pooling
    num_prompt: int
    total: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class PooledTokens:
    """Positions of a step whose hidden states are wanted.

    Attributes:
        indices: for each micro-batch, int64[p_i] positions among its tokens.
        counts: how many of them belong to each row, in the plan's order.
        complete: rows whose prompts end in this step.
    """

    indices: list[LongArray]
    counts: dict[int, int]
    complete: frozenset[int]


class PooledRows:
    """Hidden states of prompts, pooled over the steps that compute them."""

    def __init__(self) -> None:
        self._rows: dict[int, _PooledRow] = {}

    def add_row(self, new: NewRow) -> None:
        """A request entered a row; one that comes back begins again."""
        if new.pooling is not None:
            self._rows[new.row] = _PooledRow(new.pooling, new.num_prompt_tokens)

    def remove_row(self, row: int) -> None:
        """A request left a row."""
        self._rows.pop(row, None)

    def ask(self, plan: StepPlan) -> bool:
        """Whether the plan computes prompts of rows that ask."""
        if not self._rows:
            return False
        starts = zip(plan.rows.tolist(), plan.starts.tolist(), strict=True)
        return any(
            row in self._rows and start < self._rows[row].num_prompt for row, start in starts
        )

    def tokens(self, plan: StepPlan, lengths: Sequence[int]) -> PooledTokens | None:
        """What of the plan is wanted; None: nothing.

        Args:
            lengths: tokens of each micro-batch without its padding; the plan's tokens in their
                order.
        """
        if not self.ask(plan):
            return None
        parts: list[BoolArray] = []
        counts: dict[int, int] = {}
        complete: set[int] = set()
        columns = (plan.rows.tolist(), plan.starts.tolist(), plan.num_tokens.tolist())
        for row, start, count in zip(*columns, strict=True):
            known = self._rows.get(row)
            wanted = np.zeros(count, np.bool_)
            if known is not None and start < known.num_prompt:
                wanted = _wanted(known, np.arange(start, start + count))
                counts[row] = int(wanted.sum())
                if start + count >= known.num_prompt:
                    complete.add(row)
            parts.append(wanted)
        by_batch = np.split(np.concatenate(parts), np.cumsum(lengths)[:-1])
        indices = [np.flatnonzero(part) for part in by_batch]
        return PooledTokens(indices, counts, frozenset(complete))

    def pool(self, tokens: PooledTokens, hidden: torch.Tensor) -> dict[int, torch.Tensor]:
        """float32[hidden] of each row whose prompt is complete, from [p, hidden] wanted states."""
        pooled: dict[int, torch.Tensor] = {}
        parts = hidden.float().split(list(tokens.counts.values()))
        for row, part in zip(tokens.counts, parts, strict=True):
            known = self._rows[row]
            if len(part):
                total = part.sum(dim=0)
                known.total = total if known.total is None else known.total + total
            if row in tokens.complete and known.total is not None:
                is_mean = known.pooling == "mean"
                pooled[row] = known.total / known.num_prompt if is_mean else known.total
        return pooled


def _wanted(row: _PooledRow, positions: LongArray) -> BoolArray:
    """bool[t], which positions of a row's chunk count."""
    match row.pooling:
        case "last":
            return positions == row.num_prompt - 1
        case "cls":
            return positions == 0
        case "mean":
            return positions < row.num_prompt
