"""Steps that are taken at once in a simulated run: the same rows decode, and nothing can happen.

A stride ends before a request can arrive, end, need a block that is not there, or be ranked anew.
Whoever could notice it excludes it: a policy, allocator, executor or observer that would be called
in these steps and does not say that it can do without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.executor import Executor
from nanofw.contracts.hooks import speaks_for
from nanofw.contracts.kv_allocator import NO_EXTENSION, Extension
from nanofw.contracts.outputs import StepReport
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.stride import Stride
from nanofw.engine.admission import Admission
from nanofw.engine.executor_guard import ExecutorGuard
from nanofw.engine.journal import Blocker
from nanofw.engine.parts import Parts
from nanofw.engine.pending_step import PendingStep

FEWEST = 2
"""Fewer steps than these are cheaper one by one."""
MOST = 512


class Strides:
    """The scheduler's part of them.

    Attributes:
        are_possible: neither policy nor allocator could notice.
    """

    def __init__(self, parts: Parts, admission: Admission, check_every: int) -> None:
        self._parts, self._admission = parts, admission
        guard, allocator = parts.guard, parts.allocator
        is_asked = guard.rekeys or guard.budgets or guard.pauses or guard.hears_progress
        works_by_block = allocator.does_work_by_block() and speaks_for(
            allocator.plugin, "works_by_block", "extend", "commit", "num_available"
        )
        self.are_possible: bool = works_by_block and not is_asked and not check_every

    def take(
        self, executor: Executor, guard: ExecutorGuard, pending: deque[PendingStep], until: float
    ) -> tuple[Stride, StepReport] | None:
        """Steps planned before `until`, and the report of the last one that was committed; None:
        the next step must be taken alone.

        Args:
            pending: the steps in flight.
        """
        count = self._count()
        if count < FEWEST:
            return None
        running = self._parts.running
        plan = StepPlan(
            step=running.num_planned,
            rows=running.decoding,
            num_tokens=running.ones,
            starts=running.starts,
            samples=running.trues,
            num_decodes=len(running.decoding),
            same_rows=True,
        )
        stride = guard.stride(executor, plan, count, until, len(pending))
        if stride is None:
            return None
        running.stride(stride)
        given = self._grow(stride)
        self._admission.skip_plans(len(stride))
        self._parts.guard.view.now = stride.collected[-1]
        report = self._report(stride)
        if pending:
            pending.popleft()
            last = replace(
                plan,
                step=running.num_planned - 1,
                starts=running.starts - 1,
                block_rows=given.rows,
                block_positions=given.positions,
                block_ids=given.block_ids,
                copies=given.copies,
            )
            pending.append(PendingStep(last, stride.planned[-1], 0, 0, ()))
        return stride, report

    def _count(self) -> int:
        """Most steps of the next stride."""
        parts, journal = self._parts, self._parts.journal
        count = min(parts.running.num_steady_steps, MOST)
        if count < FEWEST or journal.head is not None or journal.keys:
            return 0
        if len(parts.queue):
            is_shut = not parts.running.rows.free and not parts.guard.names_victims
            if not is_shut or journal.blocker is not Blocker.ROW:
                return 0
        elif journal.blocker is not None:
            return 0
        return self._fitting(count)

    def _fitting(self, count: int) -> int:
        """As many of these steps as there are blocks for, or fewer."""
        starts, size = self._parts.running.starts, self._parts.limits.block_size
        available, present = self._parts.allocator.num_available, (starts - 1) // size
        while count >= FEWEST:
            if int(((starts + (count - 1)) // size - present).sum()) <= available:
                return count
            count //= 2
        return 0

    def _grow(self, stride: Stride) -> Extension:
        """Blocks for rows that cross a border, and full blocks shared, in the order of the steps.

        Returns the blocks of the last step.
        """
        allocator, tokens = self._parts.allocator, self._parts.running.rows.shown_tokens
        in_flight, last, given = stride.num_in_flight, len(stride) - 1, NO_EXTENSION
        for step, rows, num_tokens in self._borders(stride):
            # What is in flight fills blocks too, and is collected after the next plan.
            if step and not in_flight:
                allocator.commit(rows, num_tokens, tokens)
            if step <= last:
                extension = allocator.extend(rows, num_tokens + 1)
                if extension is None:
                    raise allocator.error(
                        f"extend() gives no blocks to rows {rows.tolist()}, though num_available "
                        f"says that there are {allocator.num_available}"
                    )
                given = extension if step == last else given
                if in_flight:
                    allocator.commit(rows, num_tokens, tokens)
        return given

    def _borders(self, stride: Stride) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Steps before which rows have filled their last block: int32[m] rows, int32[m] tokens."""
        size, starts = self._parts.limits.block_size, stride.starts
        turns = np.arange(len(stride) // size + 1, dtype=np.int32) * size
        steps = ((-starts % size)[:, None] + turns).ravel()
        rows = np.arange(len(starts)).repeat(len(turns))
        inside = (steps <= len(stride)).nonzero()[0]
        inside = inside[steps[inside].argsort(kind="stable")]
        steps, rows = steps[inside], rows[inside]
        begins = [0, *((steps[1:] != steps[:-1]).nonzero()[0] + 1).tolist(), len(steps)]
        for begin, end in pairwise(begins):
            if begin < end:
                step, some = int(steps[begin]), rows[begin:end]
                yield step, stride.rows[some], starts[some] + step

    def _report(self, stride: Stride) -> StepReport:
        parts, last = self._parts, len(stride) - 1 - stride.num_in_flight
        return StepReport(
            step=stride.step + last,
            num_prefill_tokens=0,
            num_decode_tokens=len(stride.rows),
            num_rows=len(stride.rows),
            num_running=len(parts.running),
            num_waiting=len(parts.queue),
            num_used_blocks=parts.limits.num_blocks - parts.allocator.num_available,
            num_preemptions=0,
            num_waits=0,
            planned=stride.planned[last],
            committed=stride.collected[-1],
        )
