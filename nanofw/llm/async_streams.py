"""Events of requests on their way from the engine's thread to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from nanofw.llm.results import StreamEvent

Sink: TypeAlias = Callable[[list[StreamEvent]], bool]
"""Takes events in the loop in the moment in which they come; False: it cannot take them now."""

MAX_WAITING_EVENTS = 64
"""Of a stream whose caller is slow: more of them are joined to one for each sample."""


class AsyncInbox:
    """What the engine's thread brought, until the loop takes it: woken once for all streams."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[AsyncStream, list[StreamEvent]]] = deque()
        self._is_due = False

    def put(self, stream: AsyncStream, events: list[StreamEvent]) -> None:
        """Called in the engine's thread."""
        self._items.append((stream, events))
        if not self._is_due:
            self._is_due = True
            with contextlib.suppress(RuntimeError):  # a closed loop: there is no receiver any more
                self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._is_due = False  # before it is emptied: what comes meanwhile wakes the loop again
        while self._items:
            stream, events = self._items.popleft()
            stream.accept(events)


class AsyncStream:
    """One request's way from the engine's thread to its caller's loop.

    Args:
        release: called when the result is there.
        sink: is offered what comes while `take` waits, but for the result: what it takes does not
            wake the caller.
    """

    def __init__(
        self, inbox: AsyncInbox, release: Callable[[], None], sink: Sink | None = None
    ) -> None:
        self._inbox, self._release, self._sink = inbox, release, sink
        self._is_awaited = False
        self._events: deque[StreamEvent] = deque()
        self._has_events = asyncio.Event()
        self.ended: bool = False

    def receive(self, events: list[StreamEvent]) -> None:
        """Called in the engine's thread."""
        self._inbox.put(self, events)

    def accept(self, events: list[StreamEvent]) -> None:
        """Called in the loop."""
        is_offered = self._is_awaited and not self._events and events[-1].result is None
        if is_offered and self._sink is not None and self._sink(events):
            return
        for event in events:
            self._events.append(event)
            if event.result is not None:
                self.ended = True
                self._release()
        if len(self._events) > MAX_WAITING_EVENTS:
            self._events = deque(joined(self._events))
        self._has_events.set()

    async def take(self) -> list[StreamEvent]:
        """All that waits, in its order; at least one event."""
        self._is_awaited = True
        try:
            while not self._events:
                self._has_events.clear()
                await self._has_events.wait()
        finally:
            self._is_awaited = False
        events = list(self._events)
        self._events.clear()
        return events


def joined(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """The same texts and tokens in one event for each sample, then the result if it is there."""
    by_sample: dict[int, list[StreamEvent]] = {}
    results: list[StreamEvent] = []
    for event in events:
        if event.result is not None:
            results.append(event)
        else:
            by_sample.setdefault(event.index, []).append(event)
    made = [_joined_sample(index, parts) for index, parts in by_sample.items()]
    return made + results


def _joined_sample(index: int, parts: list[StreamEvent]) -> StreamEvent:
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return StreamEvent(
        "".join([part.text for part in parts]),
        tuple(token_id for part in parts for token_id in part.token_ids),
        index,
        [position for positions in logprobs for position in positions] if logprobs else None,
    )
