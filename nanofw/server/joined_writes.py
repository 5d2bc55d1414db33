"""A connection on which parts of an answer that are written one after the other go out as one.

The system takes longer for a write than the server takes for an event: the head of an answer and
its first event are one write, and so are the last event and the end.
"""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites(asyncio.Transport):
    """Keeps what is written until `flush`, or until the event loop has done what is ready now.

    Args:
        transport: of the connection; nothing else may write to it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(bytes(data))

    def flush(self) -> None:
        """Write what was kept."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def write_now(self, data: bytes) -> None:
        """Write behind what was kept, without a delay."""
        self.flush()
        self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
