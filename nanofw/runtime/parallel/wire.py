"""Plans as messages and back, and the message of a result.

A steady decode step is a few dozen bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.runtime.parallel.messages import Done, Plan

_PLAN_FIELDS = tuple(field.name for field in fields(StepPlan) if field.init)
_NO_ROWS: dict[str, Any] = {
    "rows": EMPTY_INT,
    "num_tokens": EMPTY_INT,
    "samples": np.empty(0, np.bool_),
}
"""What stays the same in plans with `same_rows`; here, of a plan without rows."""


class PlanEncoder:
    """Remembers where the last plan ended, and leaves out what follows from it.

    Args:
        names: plugins whose arguments of requests the ranks need; those of processors on the
            host stay there. None: all.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._ends: IntArray = EMPTY_INT

    def encode(self, plan: StepPlan) -> Plan:
        """The message of the next plan."""
        follows = plan.same_rows and np.array_equal(plan.starts, self._ends)
        self._ends = plan.starts + plan.num_tokens
        sent = {name: _filled(getattr(plan, name)) for name in _PLAN_FIELDS}
        sent["new"] = [
            replace(new, arguments=needed(new.arguments, self._names)) for new in plan.new
        ]
        if plan.same_rows:
            sent |= dict.fromkeys(_NO_ROWS)
        if follows:
            sent["starts"] = None
        return Plan(**sent, follows=follows)


class PlanDecoder:
    """The other side of `PlanEncoder`: sees every message, in order."""

    def __init__(self) -> None:
        self._rows = _NO_ROWS
        self._ends = EMPTY_INT

    def decode(self, message: Plan) -> StepPlan:
        """The plan of the next message."""
        sent = {name: getattr(message, name) for name in _PLAN_FIELDS}
        sent = {name: value for name, value in sent.items() if value is not None}
        if not message.same_rows:
            self._rows = {name: sent.get(name, empty) for name, empty in _NO_ROWS.items()}
        starts = self._ends if message.follows else sent.get("starts", EMPTY_INT)
        self._ends = starts + self._rows["num_tokens"]
        return StepPlan(**{**sent, **self._rows, "starts": starts})


def done_message(result: StepResult, *, whole: bool) -> Done:
    """The message of a step's result; without `whole` only that it is done, and its digest."""
    failed = b"" if result.failed is None else result.failed.tobytes()
    digest = zlib.crc32(failed, zlib.crc32(result.token_ids.tobytes()))
    return Done(result.step, digest, result if whole else None)


def needed(arguments: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    """Arguments of a request, by plugin, that the ranks need."""
    return {name: value for name, value in arguments.items() if names is None or name in names}


def _filled(value: Any) -> Any:
    """None for an empty array, which is not sent."""
    return None if isinstance(value, np.ndarray) and not value.size else value
