"""Plans as messages and back, and the message of a result.

A steady decode step is a few dozen bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.runtime.parallel.messages import Done, Plan, encode_plan

_NUMBERS = ("step", "num_decodes", "lookahead", "same_rows")
_REPEATED = ("rows", "num_tokens", "samples")
"""What stays the same in plans with `same_rows`."""
_ARRAYS = tuple(
    field.name
    for field in fields(StepPlan)
    if field.init and field.name not in (*_NUMBERS, *_REPEATED, "new", "finished")
)


class PlanEncoder:
    """Remembers where the last plan ended, and leaves out what follows from it.

    Args:
        names: plugins whose arguments of requests the ranks need; those of processors on the
            host stay there. None: all.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._ends: IntArray = EMPTY_INT

    def encode(self, plan: StepPlan) -> bytes:
        """The message of the next plan."""
        follows = plan.same_rows and np.array_equal(plan.starts, self._ends)
        self._ends = plan.starts + plan.num_tokens
        sent: dict[str, object] = {name: getattr(plan, name) for name in _NUMBERS}
        for name in _ARRAYS if plan.same_rows else (*_REPEATED, *_ARRAYS):
            array = getattr(plan, name)
            if array.size:
                sent[name] = array
        if follows:
            sent.pop("starts", None)
        if plan.finished:
            sent["finished"] = plan.finished
        if plan.new:
            sent["new"] = [
                replace(new, arguments=needed(new.arguments, self._names)) for new in plan.new
            ]
        return encode_plan(sent, follows=follows)


class PlanDecoder:
    """The other side of `PlanEncoder`: sees every message, in order."""

    def __init__(self) -> None:
        self._last = StepPlan(step=-1)
        self._ends = EMPTY_INT

    def decode(self, message: Plan) -> StepPlan:
        """The plan of the next message."""
        plan = message.plan
        if plan.same_rows:
            for name in _REPEATED:
                setattr(plan, name, getattr(self._last, name))
        if message.follows:
            plan.starts = self._ends
        self._ends = plan.starts + plan.num_tokens
        self._last = plan
        return plan


def done_message(result: StepResult, *, whole: bool) -> Done:
    """The message of a step's result; without `whole` only that it is done, and its digest."""
    failed = b"" if result.failed is None else result.failed.tobytes()
    digest = zlib.crc32(failed, zlib.crc32(result.token_ids.tobytes()))
    return Done(result.step, digest, result if whole else None)


def needed(arguments: Mapping[str, object], names: Collection[str] | None) -> dict[str, object]:
    """Arguments of a request, by plugin, that the ranks need."""
    return {name: value for name, value in arguments.items() if names is None or name in names}
