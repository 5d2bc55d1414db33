"""Ctrl-C that waits for the end of a step: a step that is torn apart ends its engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object]


class Interrupt:
    """A signal that asks a run to end after its current step.

    Attributes:
        signal: number of the signal that came, or 0.
    """

    def __init__(self) -> None:
        self.signal: int = 0

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended."""
        return 128 + self.signal

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler: the first signal is noted, the second ends the run at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def noted_interrupt() -> Generator[Interrupt, None, None]:
    """Note SIGINT and SIGTERM for the block to look at. Only in the main thread."""
    interrupt = Interrupt()
    with _handling((signal.SIGINT, signal.SIGTERM), interrupt.note):
        yield interrupt


class Hold:
    """Blocks in which a SIGINT waits until the block is done; a second one is not held back.

    The handler from before gets it then. Between the blocks that handler gets it at once.
    """

    def __init__(self, before: Handler) -> None:
        self._before = before
        self._is_held = False
        self._noted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._is_held, self._noted = True, None

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._is_held = False
        if self._noted is not None and error is None:
            self._before(*self._noted)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self._is_held and self._noted is None:
            self._noted = number, frame
        else:
            self._before(number, frame)


@contextmanager
def postponing() -> Generator[Hold, None, None]:
    """A handler of SIGINT for many short blocks: to set it for each of them costs more than they
    do. Does nothing outside the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield Hold(_ignore)
        return
    hold = Hold(before)
    with _handling((signal.SIGINT,), hold.note):
        yield hold


@contextmanager
def postponed() -> Generator[None, None, None]:
    """One such block."""
    with postponing() as hold, hold:
        yield


def _ignore(number: int, frame: FrameType | None) -> None:
    """Where no handler of Python's is set."""


@contextmanager
def _handling(numbers: Sequence[signal.Signals], handler: Handler) -> Generator[None, None, None]:
    """Handle signals within the block; outside the main thread Python cannot, and does not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
