"""Checks, called one by one without pytest, and what became of each."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Literal, TypeAlias
from unittest import SkipTest

from nanofw.errors import NanofwError
from nanofw.plugin_calls import place_of, raised
from nanofw.testing.time_limit import TookTooLong, time_limit

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of one check.

    Attributes:
        name: of the method.
        text: what it checks, the first sentence of its docstring.
        seen: what was wrong, or why it was skipped.
        seconds: that it took.
    """

    name: str
    text: str
    outcome: Outcome
    seen: str = ""
    seconds: float = 0.0


def check_names(checks: object) -> list[str]:
    """The `test_` methods of an object, those of its bases first, in the order of the source."""
    names = [name for cls in reversed(type(checks).__mro__) for name in vars(cls)]
    return [name for name in dict.fromkeys(names) if name.startswith("test_")]


def score(checks: object, name: str, limit_s: float | None = None) -> CheckResult:
    """Call one check. Only an interrupt comes through.

    Args:
        limit_s: when it has failed if it has not ended; None: never.
    """
    began = time.perf_counter()
    outcome, seen = _outcome(checks, name, limit_s)
    return CheckResult(
        name=name,
        text=_first_sentence(getattr(checks, name).__doc__ or ""),
        outcome=outcome,
        seen=seen,
        seconds=time.perf_counter() - began,
    )


def _outcome(checks: object, name: str, limit_s: float | None) -> tuple[Outcome, str]:
    try:
        with time_limit(limit_s):
            getattr(checks, name)()
    except TookTooLong as error:
        return "failed", str(error)
    except KeyboardInterrupt:
        raise
    except SkipTest as error:
        return "skipped", str(error) or "without a reason"
    except BaseException as error:
        return "failed", what_was_seen(error)
    return "passed", ""


def what_was_seen(error: BaseException) -> str:
    """The text of a failed check; of an error that no check has worded, where it came from."""
    if isinstance(error, NanofwError):
        return str(error)
    if isinstance(error, AssertionError):
        return str(error) or f"assertion failed{_line_of(error)}"
    return f"{raised(error)}{place_of(error, __file__)}"


def _line_of(error: BaseException) -> str:
    """The line of the source that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f": {frames[-1].line} ({frames[-1].filename}, line {frames[-1].lineno})"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")
