"""Messages of an actor's calls, in their order: what the driver sends, and what it asks for."""

from __future__ import annotations

import queue
from typing import Generic, TypeVar

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


class Mailbox(Generic[Incoming, Outgoing]):
    """The actor's end. One thread works with `receive` and `send`; the rest are for calls.

    Calls of one driver may be carried out in another order than they were made in, so messages
    bear numbers and are handed on in their order.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._early: dict[int, Incoming] = {}
        self._next = 0

    def send(self, message: Outgoing) -> None:
        """A message for the driver."""
        self._outbox.put(message)

    def receive(self, timeout_s: float | None = None) -> Incoming:
        """Wait for the driver's next message. Raises `queue.Empty` when none comes in time."""
        return self._inbox.get(timeout=timeout_s)

    def close(self) -> None:
        """No more messages for the driver."""
        self._outbox.put(None)

    def put(self, message: Incoming) -> None:
        """A message that needs no place among the driver's."""
        self._inbox.put(message)

    def deliver(self, number: int, message: Incoming) -> None:
        """A message of the driver; called by one thread."""
        self._early[number] = message
        while self._next in self._early:
            self._inbox.put(self._early.pop(self._next))
            self._next += 1

    def take(self) -> list[Outgoing] | None:
        """Wait for messages for the driver; None after the last one. Called by one thread."""
        first = self._outbox.get()
        if first is None:
            return None
        taken = [first]
        while not self._outbox.empty():
            message = self._outbox.get()
            if message is None:
                self.close()
                break
            taken.append(message)
        return taken
