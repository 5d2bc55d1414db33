"""What is said of a plugin that fails: which one, in which method, with what, and where."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from nanofw.errors import ExecutorError, NanofwError, shown

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)


class PluginCalls:
    """Calls into one plugin; what they raise names it.

    Attributes:
        label: for failures: `sampler 'x' of my-package 1.0`.
        short: for refusals of a request, which are no failures: `sampler x`.
    """

    def __init__(self, label: str, short: str) -> None:
        self.label = label
        self.short = short

    def call(self, method: Callable[..., T], *args: Any, **keywords: Any) -> T:
        """The method's answer. Raises `ExecutorError` for whatever it raises but an interrupt."""
        try:
            return method(*args, **keywords)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ExecutorError(self.failure(method.__name__, error)) from error

    def ask(self, method: Callable[..., T], *args: Any) -> T:
        """The method's answer about one request. Raises ValueError for whatever it raises."""
        try:
            return method(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(self.failure(method.__name__, error)) from error

    def check(self, method: Callable[..., object], *args: Any) -> None:
        """Ask whether a request can be served; its arguments are the last of `args`.

        Raises ValueError when it cannot, whatever the method raised.
        """
        try:
            method(*args)
        except KeyboardInterrupt:
            raise
        except ValueError as error:
            raise ValueError(f"{self.short}: {error}") from error
        except BaseException as error:
            what = self.failure(method.__name__, error)
            raise ValueError(f"{what}, for the arguments {shown(args[-1])}") from error

    def tell(self, method: Callable[..., object], *args: Any) -> None:
        """Tell that a request ended. What is raised is logged: the request has its result."""
        try:
            method(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            shown_args = ", ".join(map(shown, args))
            what = self.failure(method.__name__, error)
            logger.warning("%s, for %s; the run goes on", what, shown_args)

    def failure(self, method: str, error: BaseException) -> str:
        """A sentence about a call that raised."""
        return f"{self.label}: {failed_call(method, error)}"

    def wrong(self, method: str, what: str) -> ExecutorError:
        """An error about an answer: `what` says what came, and what it must be."""
        return ExecutorError(f"{self.label}: {method}() returned {what}")


class CheckedPlugin:
    """Base of what stands in a plugin's place: it passes calls on and checks the answers.

    Args:
        label: the plugin in messages: `scheduler 'deadline' of nanofw-deadline 0.1.0`.
        kind: the class of its errors.

    Attributes:
        label: as above.
    """

    def __init__(self, label: str, kind: type[NanofwError]) -> None:
        self.label = label
        self._kind = kind
        self._file = sys.modules[type(self).__module__].__file__  # of the boundary itself

    def call(self, method: str, function: Callable[..., T], *arguments: Any) -> T:
        """The method's answer; what it raises is told with the plugin's name.

        `SystemExit` and its like are failures of the plugin; only an interrupt by the user goes
        through.
        """
        try:
            return function(*arguments)
        except BaseException as error:
            self.fail(method, error)

    def fail(self, method: str, error: BaseException) -> NoReturn:
        """Raise what a method's error is told as.

        An interrupt stays what it is, and so does an error of another plugin that this one has
        called through the engine.
        """
        if isinstance(error, KeyboardInterrupt) or (
            isinstance(error, NanofwError) and error.plugin
        ):
            raise error
        raise self.error(failed_call(method, error, __file__, self._file)) from error

    def wrong(self, method: str, value: object, wanted: str) -> NanofwError:
        """The error of an answer that cannot be: `x() returned 3; it must be <wanted>`."""
        return self.error(f"{method}() returned {shown(value)}; it must be {wanted}")

    def error(self, text: str) -> NanofwError:
        """An error that names the plugin."""
        error = self._kind(f"{self.label}: {text}")
        error.plugin = self.label
        return error


def failed_call(method: str, error: BaseException, *ours: str | None) -> str:
    """Which method raised what, and where; `ours` as for `place_of`."""
    return f"{method}() raised {raised(error)}{place_of(error, *ours)}"


def raised(error: BaseException) -> str:
    """An error's type and text."""
    try:
        text = str(error)
    except Exception:  # the class of the error may be broken, too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
