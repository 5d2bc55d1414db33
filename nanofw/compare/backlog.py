"""Whether a run kept up with its traffic: the work that waits, in any order of service.

Work is counted in tokens and not in requests: a policy that serves short requests first keeps
few requests waiting in any overload.
"""

from __future__ import annotations

import math

import numpy as np

from nanofw.compare.finished import FinishedTable
from nanofw.contracts.arrays import FloatArray

WAITING_LIMIT = 0.1
"""Overload: more than this share of the measured arrivals' work was still waiting at their end,
and it had grown since the middle."""
MIN_ARRIVALS = 30
"""Fewer requests say nothing of a queue's growth."""


class Backlog:
    """The work of a run's requests over its measured part.

    Args:
        done: every request that began or waited, not those that were refused.
        start, end: of the measured part.
    """

    def __init__(self, done: FinishedTable, start: float, end: float) -> None:
        self._arrival, self._finished = done["arrival"], done["finished"]
        self._begun = np.nan_to_num(done["scheduled"], nan=np.inf)
        self._work = done["num_tokens"] + done["num_prompt_tokens"]
        self._start, self._middle, self._end = start, (start + end) / 2, end
        inside = (self._arrival >= start) & (self._arrival <= end)
        self._is_long_enough = int(inside.sum()) >= MIN_ARRIVALS

    @property
    def is_overloaded(self) -> bool:
        """Whether much work was waiting when the measured part ended, more than at its middle."""
        if not self._is_long_enough:
            return False
        waiting = self._waiting(self._end)
        limit = WAITING_LIMIT * self._arrived(self._start, self._end)
        return waiting > max(limit, self._waiting(self._middle))

    @property
    def growth(self) -> float:
        """Share of the work that came in the second half of the measured part by which the
        unfinished work grew; NaN with too few requests. In a steady state it is 0 on average."""
        came = self._arrived(self._middle, self._end)
        if not self._is_long_enough or not came:
            return math.nan
        return (self._unfinished(self._end) - self._unfinished(self._middle)) / came

    def _arrived(self, start: float, end: float) -> float:
        return float(self._work[(self._arrival > start) & (self._arrival <= end)].sum())

    def _waiting(self, at: float) -> float:
        return float(self._work[(self._arrival <= at) & (self._begun > at)].sum())

    def _unfinished(self, at: float) -> float:
        """What waits, and of what runs the part that is left, as if it were served evenly."""
        is_there = (self._arrival <= at) & (self._finished > at)
        begun, finished = self._begun[is_there], self._finished[is_there]
        left: FloatArray = np.ones(len(finished))
        runs = begun < at
        left[runs] = (finished[runs] - at) / (finished[runs] - begun[runs])
        return float((left * self._work[is_there]).sum())
