"""What a process does for the one that started it: it ends with it, and says where it was."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from typing import TextIO

_crashes: TextIO | None = None  # kept open: faulthandler holds only its number


def watch(fd: int) -> None:
    """End this process when the one that started it has ended, also while other threads wait."""
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def report_crashes(fd: int) -> None:
    """Write where all threads are: at a crash, and when the process that started it asks."""
    global _crashes
    _crashes = os.fdopen(fd, "w", encoding="utf-8")
    faulthandler.enable(_crashes)
    faulthandler.register(signal.SIGUSR1, _crashes, all_threads=True)
