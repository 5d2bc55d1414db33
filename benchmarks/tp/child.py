"""A measurement in a process of its own, whose lines are shown as they come.

A child prints `PARTIAL {json}` whenever it knows more, and `RESULT {json}` at its end; both hold
all that it found so far. One that fails or runs out of time leaves its last partial result.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import Any

Row = dict[str, Any]

LEAVE_S = 20
"""How long a child may take to leave after its result."""

LOG_LINES = 40


class Child:
    """Started when made; reads all the time, so that no full pipe ever holds it up.

    Args:
        name: before each line that is shown.
        command: with its arguments.
        log: all lines are written here.
    """

    def __init__(self, name: str, command: list[str], log: Path, **environment: str) -> None:
        self.name = name
        self._found: Row = {}
        self._has_result = False
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._over = threading.Event()  # a result, or no more lines
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, env={**os.environ, **environment},
        )  # fmt: skip
        atexit.register(self.kill)
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def result(self, seconds: float) -> Row:
        """What it found, with `failed` and the end of its log if it did not come to its end."""
        in_time = self._over.wait(max(0.0, seconds))
        self._reader.join(LEAVE_S if in_time else 0)
        if self._reader.is_alive():
            self.kill()
        code = self._process.wait()
        atexit.unregister(self.kill)
        if self._has_result:
            return self._found
        how = f"exit {code}" if in_time else f"no end after {seconds:.0f} s"
        return {**self._found, "failed": how, "log": "\n".join(self._lines)}

    def kill(self) -> None:
        """End it and all processes of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1)

    def _read(self, log: Path) -> None:
        assert self._process.stdout is not None
        with log.open("w", encoding="utf-8") as file:
            for line in self._process.stdout:
                file.write(line)
                file.flush()
                self._take(line.rstrip("\n"))
        self._over.set()

    def _take(self, line: str) -> None:
        word, _, content = line.partition(" ")
        if word not in ("PARTIAL", "RESULT"):
            self._lines.append(line)
            print(f"  {self.name} | {line}", flush=True)
            return
        self._found = json.loads(content)
        if word == "RESULT":
            self._has_result = True
            self._over.set()
