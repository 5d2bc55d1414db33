"""HTTP connections of uvicorn that do not wait for ever: neither for a head nor for a reader."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from nanofw.config.schema import ServerLimits
from nanofw.server.joined_writes import JoinedWrites

EXTENSION = "nanofw.body_writer"
"""The extension of a request's scope that holds its `BodyWriter`."""


class BodyWriter:
    """Writes parts of a chunked answer at once, past the task that answers and what is around it.

    ASGI's `send` costs more than all else that is done for a token.

    Attributes:
        received: when the last part of the request came, on the machine's monotonic clock.
    """

    def __init__(
        self, cycle: RequestResponseCycle, transport: JoinedWrites, received: float
    ) -> None:
        self._cycle, self._transport, self.received = cycle, transport, received

    @property
    def is_free(self) -> bool:
        """Whether the answer has begun and is open, and its reader is not slow."""
        cycle = self._cycle
        is_open = cycle.response_started and not cycle.response_complete
        return is_open and not cycle.disconnected and not cycle.flow.write_paused

    def write(self, data: bytes) -> None:
        """Write a chunk, which is not empty; for a writer that is free."""
        self._transport.write_now(b"%x\r\n%b\r\n" % (len(data), data))

    def flush(self) -> None:
        """Send what the task that answers has written."""
        self._transport.flush()


class BoundedProtocol(H11Protocol):
    """Cuts off a client whose request's head does not come, and one that does not read.

    What was sent and not read is bounded by the transport; further events wait at their stream,
    where they are joined. Losing the connection ends the request.
    """

    read_timeout_s: ClassVar[float] = 30.0
    write_timeout_s: ClassVar[float] = 30.0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _writer: BodyWriter | None = None
    _received: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)
        _send_at_once(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._received = time.monotonic()
        if self._writer is not None and self.cycle.more_body:
            self._writer.received = self._received
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_timer = _cancelled(self._head_timer)
        elif self.conn.trailing_data[0] and self._head_timer is None:
            self._expect_head()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        cycle = self.cycle
        if cycle is not before and cycle.scope["http_version"] == "1.1":  # 1.0 knows no chunks
            self._writer = BodyWriter(cycle, self._joined, self._received)
            cycle.scope["extensions"] = {EXTENSION: {"writer": self._writer}}

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer = _cancelled(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer = _cancelled(self._head_timer)
        self._write_timer = _cancelled(self._write_timer)
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.read_timeout_s, self.transport.abort)


def _send_at_once(transport: asyncio.Transport) -> None:
    """An event is sent when it is written, and not when those before it were acknowledged.

    asyncio sees to this for sockets that name their protocol; a listener does not.
    """
    connection: socket.socket = transport.get_extra_info("socket")
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def protocol_of(limits: ServerLimits) -> type[BoundedProtocol]:
    """The protocol with the times of a configuration."""
    times = {"read_timeout_s": limits.read_timeout_s, "write_timeout_s": limits.write_timeout_s}
    return type("BoundedProtocol", (BoundedProtocol,), times)
