"""Answers that are server-sent events.

Every event is one line of JSON, in which the encoder leaves no line break: its frame is constant.
All that is ready at the same time is sent as one chunk, and no task is made for an event. The head
goes out with the first chunk, and the end with the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from nanofw.server.protocol import BodyWriter
from nanofw.server.streams import ClientWatch

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_INTERVAL_S = 15.0
"""Seconds between two comments: without them a proxy may take the connection for dead."""

_encode = msgspec.json.Encoder().encode


def event_of(record: dict[str, object]) -> bytes:
    """An event with an object of JSON."""
    return b"data: " + _encode(record) + b"\n\n"


class EventStream(Response):
    """A stream of events that ends its request however it ends itself.

    Args:
        chunks: of events, to the last one, and whether it is this one.
        watch: runs, for the task that answers.
        end: called once, at the end.
        writer: of the connection; None: another server than ours runs the application.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[tuple[bytes, bool]],
        watch: ClientWatch,
        end: Callable[[], Awaitable[None]],
        writer: BodyWriter | None = None,
    ) -> None:
        self._chunks, self._watch, self._end, self._writer = chunks, watch, end, writer
        self.status_code = 200
        self.background: None = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pings = _Pings(send)
        try:
            await self._send(send)
        except asyncio.CancelledError:
            if not self._watch.is_gone:
                raise
            answering = asyncio.current_task()
            assert answering is not None
            answering.uncancel()
        finally:
            pings.stop()
            self._watch.stop()
            try:
                await self._chunks.aclose()
            finally:
                await self._end()

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk, is_last in self._chunks:
            await send(_body(chunk, more=not is_last))
            if self._writer is not None:
                self._writer.flush()


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


class _Pings:
    """Sends comments until it is stopped. A task is made for each: most streams end before one."""

    def __init__(self, send: Send) -> None:
        self._send, self._loop = send, asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._start)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._ping())

    async def _ping(self) -> None:
        await self._send(_body(PING))
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._start)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
