"""Answers that are server-sent events.

Every event is one line of JSON, in which the encoder leaves no line break: its frame is constant.
All that is ready at the same time is sent as one chunk, and no task is made for an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

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
        chunks: of events, to the last one.
        watch: runs, for the task that answers.
        end: called once, at the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes], watch: ClientWatch, end: Callable[[], Awaitable[None]]
    ) -> None:
        self._chunks, self._watch, self._end = chunks, watch, end
        self.status_code = 200
        self.background: None = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinging = asyncio.create_task(_ping(send))
        try:
            await self._send(send)
        except asyncio.CancelledError:
            if not self._watch.is_gone:
                raise
            answering = asyncio.current_task()
            assert answering is not None
            answering.uncancel()
        finally:
            pinging.cancel()
            self._watch.stop()
            try:
                await self._chunks.aclose()
            finally:
                await self._end()

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self._chunks:
            await send(_body(chunk))
        await send(_body(b"", more=False))


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def _ping(send: Send) -> None:
    while True:
        await asyncio.sleep(PING_INTERVAL_S)
        await send(_body(PING))
