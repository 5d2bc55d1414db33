"""Events of one request's prompts, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request

from nanofw.llm.results import StreamEvent

T = TypeVar("T")
Events: TypeAlias = AsyncGenerator[tuple[int, StreamEvent]]
"""The number of a prompt, and what came of it."""

MAX_AHEAD = 8
"""Events of several prompts that wait for their reader; further ones wait at their streams."""


def numbered(streams: Sequence[AsyncGenerator[StreamEvent]]) -> Events:
    """The events of all prompts of a request; leaving them ends all streams."""
    return _only(streams[0]) if len(streams) == 1 else _merged(streams)


async def _only(stream: AsyncGenerator[StreamEvent]) -> Events:
    async with aclosing(stream):
        async for event in stream:
            yield 0, event


async def _merged(streams: Sequence[AsyncGenerator[StreamEvent]]) -> Events:
    queue: asyncio.Queue[tuple[int, StreamEvent] | Exception] = asyncio.Queue(MAX_AHEAD)
    tasks = [asyncio.create_task(_pump(n, stream, queue)) for n, stream in enumerate(streams)]
    try:
        for _ in streams:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item[1].result is not None:
                    break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    number: int,
    stream: AsyncGenerator[StreamEvent],
    queue: asyncio.Queue[tuple[int, StreamEvent] | Exception],
) -> None:
    try:
        async with aclosing(stream):
            async for event in stream:
                await queue.put((number, event))
    except Exception as error:
        await queue.put(error)


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """What the work gives, if the client is still there then.

    Raises:
        ClientDisconnect: it went away, and the work was cancelled.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
