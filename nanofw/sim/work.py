"""How much there is to do in a step, in the counts that its time depends on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nanofw.contracts.arrays import LongArray
from nanofw.contracts.plan import StepPlan


class StepWork(NamedTuple):
    """Counts of one step.

    Attributes:
        num_rows: requests in it.
        num_prefills: of them, those that compute prompts.
        num_tokens: tokens computed.
        num_sampled: rows that sample a token.
        num_keys: tokens whose keys and values are read, once for each row.
        num_pairs: query-key pairs under the causal mask.
        num_removed: rows that were removed since the plan before.
        num_prefills_before: rows of that plan that computed prompts, where it is known: the host
            takes over what they brought while the device waits, unless a step is in flight.
        step: number of the plan.
    """

    num_rows: int
    num_prefills: int
    num_tokens: int
    num_sampled: int
    num_keys: int
    num_pairs: int
    num_removed: int = 0
    num_prefills_before: int = 0
    step: int = 0

    @classmethod
    def of(cls, plan: StepPlan, before: StepWork | None = None) -> StepWork:
        """Count a plan; `before`: the counts of the plan before it, which save a sum over rows.

        Steps of a stride may lie between: each of them has the rows of the plan before.
        """
        rows, removed = len(plan.rows), len(plan.removed)
        after = before.num_prefills if before is not None else 0
        if before is not None and plan.same_rows and plan.num_decodes == rows:
            # each row is one token longer in each step
            keys = before.num_keys + rows * (plan.step - before.step)
            return cls(rows, 0, rows, rows, keys, keys, removed, after, plan.step)
        starts = int(plan.starts.sum(dtype=np.int64))
        if plan.num_decodes == rows:
            keys = starts + rows
            return cls(rows, 0, rows, rows, keys, keys, removed, after, plan.step)
        tokens = int(plan.num_tokens.sum(dtype=np.int64))
        queries = plan.num_tokens.astype(np.int64)
        pairs = int((queries * plan.starts + queries * (queries + 1) // 2).sum())
        sampled = int(np.count_nonzero(plan.samples))
        prefills, keys = rows - plan.num_decodes, starts + tokens
        return cls(rows, prefills, tokens, sampled, keys, pairs, removed, after, plan.step)


def steady_keys(work: StepWork, num_steps: int) -> LongArray:
    """int64[num_steps], keys of a step that decodes alone and of those after it with its rows."""
    return work.num_keys + work.num_rows * np.arange(num_steps, dtype=np.int64)
