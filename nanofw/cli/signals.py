"""Signals that ask a command to end: it ends as after Ctrl-C, with what was finished kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """Raised in the main thread when such a signal comes.

    Attributes:
        signal: that came.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal: signal.Signals = signal.Signals(number)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended."""
        return 128 + self.signal


@contextmanager
def ended_as_by_interrupt() -> Generator[None]:
    """Raise `Ended` in the block for the first of `SIGNALS`; a second one ends the process.

    A signal that the caller ignores, as `nohup` does, stays ignored. Does nothing outside the
    main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise Ended(number)

    before = {each: signal.getsignal(each) for each in SIGNALS}
    before = {each: handler for each, handler in before.items() if handler != signal.SIG_IGN}
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
