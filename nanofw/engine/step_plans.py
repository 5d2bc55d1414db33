"""The arrays of a step's plan, made from the running set as it moves on."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.kv_allocator import Extension
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.engine.running import RunningSet


class Prefills:
    """Rows of one plan that compute prompt tokens, and how many each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.new: list[NewRow] = []
        self.copies: list[IntArray] = []

    def add_row(self, row: int, count: int) -> None:
        self.rows.append(row)
        self.counts.append(count)

    def arrays(self) -> tuple[IntArray, IntArray]:
        """int32[p] rows and int32[p] token counts."""
        return np.array(self.rows, np.int32), np.array(self.counts, np.int32)


def decode_plan(running: RunningSet, given: Extension) -> StepPlan:
    """The plan of a step in which the decoding rows run alone.

    Args:
        given: blocks that the rows got for this step.
    """
    rows = running.decoding
    starts, is_same = running.advance_decodes()
    return StepPlan(
        step=running.num_planned,
        rows=rows,
        num_tokens=running.ones,
        starts=starts,
        samples=running.trues,
        num_decodes=len(rows),
        block_rows=given.rows,
        block_positions=given.positions,
        block_ids=given.block_ids,
        copies=given.copies,
        host_rows=running.host_rows,
        same_rows=is_same,
    )


def mixed_plan(
    running: RunningSet, decoding: IntArray, given: Extension, prefills: Prefills
) -> StepPlan:
    """The plan of a step with prefill.

    Args:
        decoding: int32[d], rows that decode in the same step.
        given: blocks that these rows got for this step.
    """
    rows, num_tokens = prefills.arrays()
    if len(decoding):
        rows = np.concatenate((decoding, rows))
        num_tokens = np.concatenate((running.ones, num_tokens))
    copies = given.copies
    if prefills.copies:
        copies = np.concatenate((copies, *prefills.copies))
    starts, samples = running.advance_mixed(rows, num_tokens)
    host = running.rows.host
    return StepPlan(
        step=running.num_planned,
        rows=rows,
        num_tokens=num_tokens,
        starts=starts,
        samples=samples,
        num_decodes=len(decoding),
        block_rows=given.rows,
        block_positions=given.positions,
        block_ids=given.block_ids,
        copies=copies,
        host_rows=rows[samples & host[rows]] if running.num_host else EMPTY_INT,
        new=prefills.new,
    )
