"""Which component of a step an error came from, found on the way that it took."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from nanofw.plugin_calls import raised


@dataclass(frozen=True, slots=True)
class StepPart:
    """A component that takes part in steps.

    Attributes:
        label: the plugin for messages, with its distribution.
    """

    label: str
    target: object


def describe(error: BaseException, parts: Sequence[StepPart]) -> str:
    """`model 'x' of p 1.0: forward() raised ValueError: text`, or without who raised it.

    The innermost component on the way is named, with the method by which it was entered.
    """
    text = raised(error)
    culprit, method = None, ""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        part = _owner(frame, parts)
        if part is None:
            continue
        if culprit is not None and part is not culprit:
            break
        culprit, method = part, frame.f_code.co_name
    return text if culprit is None else f"{culprit.label}: {method}() raised {text}"


def _owner(frame: FrameType, parts: Sequence[StepPart]) -> StepPart | None:
    """The component whose method a frame runs."""
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return next((part for part in parts if part.target is first), None)
