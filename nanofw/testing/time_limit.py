"""A limit of time for calls of a plugin: the method that does not return is named."""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import itertools
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import nanofw

GRACE_S = 20.0
"""After the limit, until the process ends: for calls that no interrupt reaches."""
AGAIN_S = 0.1
"""Between interrupts, while a plugin catches them."""
_OURS = (os.fspath(Path(nanofw.__file__).parent), sysconfig.get_path("stdlib"), "<")


class TookTooLong(KeyboardInterrupt):
    """An interrupt, since what stands between a plugin and its caller lets those through."""


@contextmanager
def time_limit(seconds: float | None) -> Generator[None]:
    """Raise `TookTooLong` inside when the time is over, and at the end if it was caught there.

    Native code that no interrupt reaches ends the process, with the stacks of all threads on
    standard error. In another thread than the main one there is no limit.

    Args:
        seconds: None: there is no limit.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    outer, seen = inspect.stack(0)[2].frame, list[str]()  # where `with time_limit` stands

    def stop(_: int, frame: FrameType | None) -> None:
        if not seen:
            seen.append(f"it did not end within {seconds:g} s: {_place(frame, outer)}")
        raise TookTooLong(seen[0])

    try:
        with _alarm(seconds, stop):
            yield
    except BaseException as error:
        if seen and not isinstance(error, TookTooLong):
            raise TookTooLong(seen[0]) from error
        raise
    if seen:
        raise TookTooLong(seen[0])


@contextmanager
def _alarm(seconds: float, stop: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Call `stop` when the time is over, and again; an alarm that was set before goes on later."""
    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):  # it has no file
            faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, handler)
        if rest:
            left = max(0.001, rest - (time.monotonic() - began))
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _place(frame: FrameType | None, outer: FrameType) -> str:
    """The last call from nanofw into code of others, and how far it came."""
    frames = list(_frames(frame, outer))
    for number, (inner, caller) in enumerate(itertools.pairwise(frames)):
        if not _is_ours(inner) and _is_ours(caller):
            file = inner.f_code.co_filename
            same = [each for each in frames[: number + 1] if each.f_code.co_filename == file]
            return f"{_name(inner)}() did not return ({os.path.basename(file)}, {_line(same[0])})"
    if not frames:
        return "it was not inside a call"
    last = frames[0]
    return (
        f"the run was in {_name(last)}() ({os.path.basename(last.f_code.co_filename)}, "
        f"{_line(last)}); what the plugin answers may keep it from its end"
    )


def _frames(frame: FrameType | None, outer: FrameType) -> Iterator[FrameType]:
    """From the innermost one; the last is that of the limit."""
    while frame is not None:
        yield frame
        if frame is outer:
            return
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _name(frame: FrameType) -> str:
    return frame.f_code.co_qualname.rpartition("<locals>.")[2]


def _line(frame: FrameType) -> str:
    return f"line {frame.f_lineno}"
