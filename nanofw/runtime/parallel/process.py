"""A process that serves this one over a pair of sockets, as this one sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType

from nanofw.errors import ExecutorError
from nanofw.runtime.parallel.channel import Channel

_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from {module} import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_STACK_WAIT_S = 1.0
_STACK_BYTES = 1 << 16
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class ChildProcess:
    """Started when made. A fresh interpreter: the user's main module is not imported again.

    The process has a session of its own, so that a terminal's Ctrl-C reaches this process alone,
    and ends itself when this end of its channel is closed, however that happens.

    Args:
        name: what it is, for messages: `rank 1`.
        module: whose `main(channel, stacks)`, with the numbers of two files, serves.
        send_timeout_s: how long it may leave a message unread.
        variables: of its environment, beside those of this process.

    Attributes:
        name: as above.
        channel: messages to and from it.
    """

    def __init__(
        self,
        name: str,
        module: str,
        send_timeout_s: float,
        variables: Mapping[str, str] = _NO_VARIABLES,
    ) -> None:
        if not sys.executable:
            raise ExecutorError("sys.executable names no interpreter to start workers with")
        self.name: str = name
        ours, theirs = socket.socketpair()
        self._stacks, stacks = os.pipe()
        try:
            fds = (theirs.fileno(), stacks)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(module=module), *map(str, fds), *sys.path],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=_error_output(),
                start_new_session=True,
                env={"GOMP_SPINCOUNT": "0", **os.environ, **variables},  # idle threads sleep
            )
        except OSError as error:
            ours.close()
            os.close(self._stacks)
            raise ExecutorError(f"{name} could not be started: {error}") from error
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

    def end_text(self, timeout_s: float) -> str:
        """How it ended, and its last words: `rank 1 (process 77) was ended by SIGKILL`.

        Args:
            timeout_s: how long to wait for its end.
        """
        self.wait(timeout_s)
        words = self.last_words()
        text = f"{self.name} (process {self.pid}) {self._end()}"
        return f"{text}\n{words}" if words else text

    def _end(self) -> str:
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
        """Give back what this process holds of it; the other must have ended."""
        self.channel.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1
        self._process.wait()

    def _read_stacks(self, timeout_s: float) -> bytes:
        if not select.select([self._stacks], [], [], timeout_s)[0]:
            return b""
        return os.read(self._stacks, _STACK_BYTES)


class RankProcess(ChildProcess):
    """A rank of a run.

    Attributes:
        rank: its rank.
    """

    def __init__(self, rank: int, send_timeout_s: float) -> None:
        super().__init__(f"rank {rank}", "nanofw.runtime.parallel.main", send_timeout_s)
        self.rank: int = rank


def _error_output() -> int:
    """Where a worker's standard output goes: the engine's own is for results."""
    try:
        return subprocess.DEVNULL if sys.__stderr__ is None else sys.__stderr__.fileno()
    except (OSError, ValueError):
        return subprocess.DEVNULL
