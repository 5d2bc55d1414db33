"""Events of one request's prompts, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from starlette.types import Receive

from nanofw.llm.results import StreamEvent

Events: TypeAlias = AsyncGenerator[tuple[int, list[StreamEvent]]]
"""The number of a prompt, and what came of it since the last look."""

MAX_AHEAD = 8
"""Lists of several prompts that wait for their reader; further events wait at their streams."""


def numbered(streams: Sequence[AsyncGenerator[list[StreamEvent]]]) -> Events:
    """The events of all prompts of a request; leaving them ends all streams."""
    return _only(streams[0]) if len(streams) == 1 else _merged(streams)


async def _only(stream: AsyncGenerator[list[StreamEvent]]) -> Events:
    async with aclosing(stream):
        async for events in stream:
            yield 0, events


async def _merged(streams: Sequence[AsyncGenerator[list[StreamEvent]]]) -> Events:
    queue: asyncio.Queue[tuple[int, list[StreamEvent]] | Exception] = asyncio.Queue(MAX_AHEAD)
    tasks = [asyncio.create_task(_pump(n, stream, queue)) for n, stream in enumerate(streams)]
    try:
        for _ in streams:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item[1][-1].result is not None:
                    break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    number: int,
    stream: AsyncGenerator[list[StreamEvent]],
    queue: asyncio.Queue[tuple[int, list[StreamEvent]] | Exception],
) -> None:
    try:
        async with aclosing(stream):
            async for events in stream:
                await queue.put((number, events))
    except Exception as error:
        await queue.put(error)


class ClientWatch:
    """Cancels the task that answers a request when its client goes away.

    One watcher for the whole request. From `start` to `stop` nothing else may receive.

    Attributes:
        is_gone: the client went away; the task's `CancelledError` means this.
    """

    def __init__(self) -> None:
        self.is_gone: bool = False
        self._watcher: asyncio.Task[None] | None = None

    def start(self, receive: Receive) -> None:
        """Watch, for the task that runs now."""
        answering = asyncio.current_task()
        assert answering is not None
        self._watcher = asyncio.create_task(self._watch(receive, answering))

    async def _watch(self, receive: Receive, answering: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        answering.cancel()

    def stop(self) -> None:
        """The rest of the answer takes no time. Idempotent."""
        if self._watcher is not None and not self.is_gone:
            self._watcher.cancel()
