"""Calls into plugins: what one raises, or answers wrongly, is told with its name."""

from __future__ import annotations

import logging
import math
import operator
import os
import sys
import traceback
from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn, TypeVar

import numpy as np

from nanofw.errors import ExecutorError, NanofwError, near, shown

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)


class PluginCalls:
    """Calls into one plugin; the base of what stands in a plugin's place.

    `SystemExit` and its like are failures of the plugin; only an interrupt by the user goes
    through.

    Args:
        label: the plugin in messages: `scheduler 'deadline' of nanofw-deadline 0.1.0`.
        kind: the class of its errors.

    Attributes:
        label: as above.
    """

    def __init__(self, label: str, kind: type[NanofwError] = ExecutorError) -> None:
        self.label = label
        self._kind = kind
        self._file = sys.modules[type(self).__module__].__file__  # of the boundary itself

    def call(self, method: str, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """The method's answer; what it raises is told with the plugin's name."""
        try:
            return function(*arguments, **keywords)
        except BaseException as error:
            self.fail(method, error)

    def ask(self, method: str, function: Callable[..., T], *arguments: Any) -> T:
        """The method's answer about one request. Raises ValueError for whatever it raises."""
        try:
            return function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(self.failure(method, error)) from error

    def check(self, function: Callable[..., object], *arguments: Any) -> None:
        """Ask whether a request can be served; its own arguments are the last ones.

        Raises ValueError when it cannot, whatever `check` raised.
        """
        try:
            function(*arguments)
        except KeyboardInterrupt:
            raise
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from error
        except BaseException as error:
            what = self.failure("check", error)
            raise ValueError(f"{what}, for the arguments {shown(arguments[-1])}") from error

    def tell(self, method: str, function: Callable[..., object], *arguments: Any) -> None:
        """Tell that a request ended. What is raised is logged: the request has its result."""
        try:
            function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            about = shown(arguments[0])
            logger.warning("%s, for %s; the run goes on", self.failure(method, error), about)

    def fail(self, method: str, error: BaseException) -> NoReturn:
        """Raise what a method's error is told as.

        An interrupt stays what it is, and so does an error of another plugin that this one has
        called through the engine.
        """
        if isinstance(error, KeyboardInterrupt) or is_named(error):
            raise error
        raise self.error(failed_call(method, error, __file__, self._file)) from error

    def failure(self, method: str, error: BaseException) -> str:
        """A sentence about a call that raised."""
        return f"{self.label}: {failed_call(method, error, __file__, self._file)}"

    def integer(self, method: str, value: object, least: int | None = None) -> int:
        """The answer as a number, which must be an integer, and not less than `least`."""
        number = integer_of(value)
        if number is None or (least is not None and number < least):
            wanted = "an integer" if least is None else f"an integer, {least} or greater"
            raise self.wrong(method, value, wanted)
        return number

    def flag(self, method: str, value: object) -> bool:
        """The answer as a bool, which it must be."""
        if not is_flag(value):
            raise self.wrong(method, value, "True or False")
        return bool(value)

    def wrong(self, method: str, value: object, wanted: str) -> NanofwError:
        """The error of an answer that cannot be: `x() returned 3; it must be <wanted>`."""
        return self.error(f"{method}() returned {described(value)}; it must be {wanted}")

    def error(self, text: str) -> NanofwError:
        """An error that names the plugin."""
        error = self._kind(f"{self.label}: {text}")
        error.plugin = self.label
        return error


class WrongAnswer(Exception):
    """An answer of a part of the step, a model for example, that cannot be used.

    Who calls the part has the object, and not its name: the executor knows that.
    """

    def __init__(self, part: object, method: str, value: object, wanted: str) -> None:
        self.part = part
        self.method = method
        super().__init__(f"returned {described(value)}; it must be {wanted}")


def is_named(error: BaseException) -> bool:
    """Whether an error says which plugin is to blame."""
    return isinstance(error, NanofwError) and bool(error.plugin)


def failed_call(method: str, error: BaseException, *ours: str | None) -> str:
    """Which method raised what, and where; `ours` as for `place_of`."""
    return f"{method}() raised {raised(error)}{place_of(error, *ours)}"


def raised(error: BaseException) -> str:
    """An error's type and text."""
    try:
        text = str(error)
    except Exception:  # the class of the error may be broken, too
        text = ""
    if isinstance(error, AttributeError) and text:
        text += _near_attribute(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _near_attribute(error: AttributeError) -> str:
    """What may be meant by an attribute that is not there."""
    try:
        return near(error.name or "", [name for name in dir(error.obj) if name[0] != "_"], count=1)
    except Exception:  # the class of the object may be broken, or nothing is said of it
        return ""


def place_of(error: BaseException, *ours: str | None) -> str:
    """The last line of the plugin's file on the way to an error: ` (my_policy.py, line 12)`.

    The first frames are those of the file that called the plugin.

    Args:
        ours: further files that are not the plugin's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    callers = {*ours, frames[0].filename if frames else ""}
    own = [frame for frame in frames if frame.filename not in callers]
    if not own:
        return ""
    last = [frame for frame in own if frame.filename == own[0].filename][-1]
    return f" ({os.path.basename(last.filename)}, line {last.lineno})"


def described(value: object) -> str:
    """A value as messages quote it; of an array or a tensor `float32[2, 64] on cpu`."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or not shape or dtype is None:
        return shown(value)
    device = getattr(value, "device", "")
    kind = str(dtype).removeprefix("torch.")
    sizes = ", ".join(str(size) for size in shape)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"{kind}[{sizes}]{f' on {device}' if device else ''}"


def is_flag(value: object) -> bool:
    """Whether it is true or false, and no number or collection that is taken for it."""
    return isinstance(value, (bool, np.bool_))


def integer_of(value: Any) -> int | None:
    """An integer of any kind; None for what is not one, True and False among it."""
    if type(value) is int:
        return value
    try:
        return None if is_flag(value) else operator.index(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the class of the value may be broken, too
        return None


def number_of(value: object) -> float | None:
    """A number of any kind; None for what is not one, True and False among it."""
    if type(value) is float:
        return value
    if is_flag(value) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
