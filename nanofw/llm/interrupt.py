"""Ctrl-C that waits for the end of a step: a step that is torn apart ends its engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def postponed() -> Iterator[None]:
    """Let a SIGINT wait until the block is done; a second one is not held back.

    Whoever handled the signal before gets it then. Does nothing outside the main thread.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            before(number, frame)
        noted.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        before(*noted[0])
