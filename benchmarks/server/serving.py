"""A server in a process of its own, and what that process takes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Served:
    """A server that runs.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url, self._proc = url, Path(f"/proc/{pid}")

    def cpu_s(self) -> float:
        """Seconds of processor time of its process so far."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Its memory, in MiB."""
        pages = int((self._proc / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def serving(
    words: Sequence[str],
    command: Sequence[str] = ("-m", "nanofw"),
    cores: Sequence[int] = (),
) -> Generator[Served]:
    """A server with these arguments, at a free port; it ends with the block.

    Args:
        cores: on which it may run; empty: on all.
    """
    process = subprocess.Popen(
        [sys.executable, *command, "serve", *words, "server.port=0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    assert process.stderr is not None
    url = ""
    try:
        for line in process.stderr:
            if found := re.search(r"listening at (http://\S+?),?\s", line):
                url = found[1]
            if "nanofw: ready" in line:
                break
        else:
            raise SystemExit("the server did not start; `nanofw serve` says why")
        yield Served(url, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
