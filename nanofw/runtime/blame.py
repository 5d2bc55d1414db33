"""Which component of a step an error came from, found on the way that it took."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from nanofw.errors import ExecutorError
from nanofw.plugin_calls import WrongAnswer, raised


@dataclass(frozen=True, slots=True)
class StepPart:
    """A component that takes part in steps.

    Attributes:
        label: the plugin for messages, with its distribution.
    """

    label: str
    target: object


def step_error(what: str, error: BaseException, parts: Sequence[StepPart]) -> ExecutorError:
    """An error in the name of the component that is to blame, if one is.

    `step 3 failed: model 'x' of p 1.0: forward() raised ValueError: text (x.py, line 12)`.
    """
    label, text = _blamed(error, parts)
    told = ExecutorError(f"{what}: {text}" if not label else f"{what}: {label}: {text}")
    told.plugin = label
    return told


def _blamed(error: BaseException, parts: Sequence[StepPart]) -> tuple[str, str]:
    """The label of the component that is to blame, or nothing, and what it did.

    Of a raised error that is the innermost component on its way, with the method by which it was
    entered.
    """
    if isinstance(error, WrongAnswer):
        label = next((part.label for part in parts if part.target is error.part), "")
        return label, f"{error.method}() {error}"
    culprit, method, place = None, "", ""
    lines: dict[str, int] = {}  # the innermost of each file
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        lines.setdefault(file, line)
        part = _owner(frame, parts)
        if part is None:
            continue
        if culprit is None:
            place = f" ({os.path.basename(file)}, line {lines[file]})"
        elif part is not culprit:
            break
        culprit = part
        if not method or hasattr(part.target, name):  # a decorator has a name of its own
            method = name
    if culprit is None:
        return "", raised(error)
    return culprit.label, f"{method}() raised {raised(error)}{place}"


def _owner(frame: FrameType, parts: Sequence[StepPart]) -> StepPart | None:
    """The component whose method a frame runs."""
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return next((part for part in parts if part.target is first), None)
