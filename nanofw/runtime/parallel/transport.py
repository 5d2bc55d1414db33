"""How messages reach the ranks, and how their ends are noticed: over processes of this host."""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nanofw.runtime.parallel.process import RankProcess

LOOPBACK = "127.0.0.1"

_END_WAIT_S = 1.0

News: TypeAlias = Mapping[int, "list[bytes] | None"]
"""By rank: the messages that came from it, or None: it is gone, which is told once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is.

    Attributes:
        device: as its process numbers them.
        host: its address for the other ranks.
        shares_cores: the ranks share the cores of a host; else each has its own.
    """

    device: str
    host: str = LOOPBACK
    shares_cores: bool = True


class Transport(Protocol):
    """Starts the ranks when made. Used by one thread, and by a finalizer when that is gone.

    Attributes:
        size: how many.
        pids: of their processes, in rank order.
        places: where they are, in rank order.
    """

    size: int
    pids: list[int]
    places: list[Place]

    def send(self, rank: int, content: bytes) -> None:
        """Send a message; messages to a rank arrive in order.

        Raises:
            TimeoutError: the rank does not read.
            OSError: it is gone.
        """
        ...

    def poll(self, timeout_s: float) -> News:
        """Wait for news; empty when there was none for so long."""
        ...

    def end_text(self, rank: int) -> str:
        """How a rank that is gone ended: `rank 1 (process 77) was ended by SIGKILL`."""
        ...

    def stack(self, rank: int) -> str:
        """Where the threads of a rank are; empty when it does not answer."""
        ...

    def wait_for_exit(self, timeout_s: float) -> None:
        """Wait until the ranks, which were told to stop, have left; so long at most."""
        ...

    def end_ranks(self) -> None:
        """End the ranks at once and give everything back. Idempotent."""
        ...


class ProcessTransport:
    """One process of this host per rank, and a pair of sockets to each.

    Args:
        places: of the ranks.
        send_timeout_s: how long a rank may leave a message unread.
    """

    def __init__(self, places: list[Place], send_timeout_s: float) -> None:
        self.size: int = len(places)
        self.places = places
        self._processes: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._is_open = True
        try:
            for rank in range(self.size):
                process = RankProcess(rank, send_timeout_s)
                self._processes.append(process)
                self._selector.register(process.channel, selectors.EVENT_READ, process)
        except BaseException:
            self.end_ranks()
            raise
        self.pids: list[int] = [process.pid for process in self._processes]

    def send(self, rank: int, content: bytes) -> None:
        self._processes[rank].channel.send(content)

    def poll(self, timeout_s: float) -> News:
        news: dict[int, list[bytes] | None] = {}
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            process: RankProcess = key.data
            try:
                news[process.rank] = process.channel.take()
            except EOFError:
                self._selector.unregister(process.channel)
                news[process.rank] = None
        return news

    def end_text(self, rank: int) -> str:
        return self._processes[rank].end_text(_END_WAIT_S)

    def stack(self, rank: int) -> str:
        return self._processes[rank].stack()

    def wait_for_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            process.wait(max(0.0, deadline - time.monotonic()))

    def end_ranks(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.close()
        self._selector.close()
