"""A worker process as the engine's process sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

from nanofw.errors import ExecutorError
from nanofw.runtime.parallel.channel import Channel

_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from nanofw.runtime.parallel.main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_STACK_WAIT_S = 1.0
_STACK_BYTES = 1 << 16


class RankProcess:
    """Started when made. A fresh interpreter: the user's main module is not imported again.

    The process has a session of its own, so that a terminal's Ctrl-C reaches the engine alone,
    and ends itself when the engine's end of its channel is closed, however that happens.

    Attributes:
        rank: its rank.
        channel: messages to and from it.
    """

    def __init__(self, rank: int, send_timeout_s: float) -> None:
        if not sys.executable:
            raise ExecutorError("sys.executable names no interpreter to start workers with")
        self.rank = rank
        ours, theirs = socket.socketpair()
        self._stacks, stacks = os.pipe()
        try:
            fds = (theirs.fileno(), stacks)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *map(str, fds), *sys.path],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=_error_output(),
                start_new_session=True,
                env={"GOMP_SPINCOUNT": "0", **os.environ},  # idle threads sleep
            )
        except OSError as error:
            ours.close()
            os.close(self._stacks)
            raise ExecutorError(f"rank {rank} could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(stacks)
        ours.settimeout(send_timeout_s)
        self.channel: Channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()

    def end_text(self) -> str:
        """How it ended, for a message."""
        code = self._process.poll()
        if code is None:
            return "closed its channel and runs on"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ""
        if name == "SIGKILL":
            hint = "; if no user killed it, the system ran out of memory"
        return f"was ended by {name}{hint}"

    def stack(self) -> str:
        """Where its threads are now."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT_S
        text = b""
        while time.monotonic() < deadline:
            part = self._read_stacks(0.1)
            text += part
            if text and not part:
                break
        return text.decode("utf-8", "replace")

    def last_words(self) -> str:
        """What the interpreter wrote when it crashed, or nothing."""
        return self._read_stacks(0).decode("utf-8", "replace")

    def close(self) -> None:
        """Give back what the engine's process holds of it; the process must have ended."""
        self.channel.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1
        self._process.wait()

    def _read_stacks(self, timeout_s: float) -> bytes:
        if not select.select([self._stacks], [], [], timeout_s)[0]:
            return b""
        return os.read(self._stacks, _STACK_BYTES)


def _error_output() -> int:
    """Where a worker's standard output goes: the engine's own is for results."""
    try:
        return subprocess.DEVNULL if sys.__stderr__ is None else sys.__stderr__.fileno()
    except (OSError, ValueError):
        return subprocess.DEVNULL
