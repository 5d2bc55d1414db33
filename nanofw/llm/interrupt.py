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


@contextmanager
def postponed() -> Generator[None, None, None]:
    """Let a SIGINT wait until the block is done; a second one is not held back.

    The handler from before gets it then. Does nothing outside the main thread.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            before(number, frame)
        noted.append((number, frame))

    with _handling((signal.SIGINT,), note):
        yield
    if noted:
        before(*noted[0])


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
