"""The waiting requests: one heap per group of the policy, in O(log n) per operation."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import NamedTuple

from nanofw.contracts.scheduler import Refuse, SortKey
from nanofw.engine.journal import Journal
from nanofw.engine.policy_guard import PolicyGuard
from nanofw.engine.request_state import RequestState


class QueueEntry(NamedTuple):
    """A waiting request in its heap. Orders are unique, so that states are never compared."""

    key: object
    is_new: int  # 0 if preempted, else 1
    arrival: float
    order: int
    ticket: int  # the entry counts while its state has the same
    state: RequestState

    @property
    def is_live(self) -> bool:
        """Whether the request still waits under this entry."""
        return self.ticket == self.state.ticket


class WaitingQueue:
    """Waiting requests in the order of the policy's keys.

    Entries of requests that finished or got a new key stay in their heap until they surface or
    make up half of it.
    """

    def __init__(self, guard: PolicyGuard, journal: Journal) -> None:
        self._guard, self._journal = guard, journal
        self._grouped = guard.orders_groups
        self._heaps: dict[Hashable, list[QueueEntry]] = {}
        self._groups: list[tuple[object, int, Hashable]] = []  # (group key, ticket, group)
        self._tickets: dict[Hashable, int] = {}  # the one entry of a group that counts
        self._ticket = 0
        self._num_waiting = 0
        self._num_stale = 0
        self._last_ticket = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, state: RequestState) -> Refuse | None:
        """Queue the request under the policy's key; the answer is a refusal.

        Raises `PolicyError` and leaves the queue as it was.
        """
        if not state.num_preemptions:
            state.group = self._guard.group(state)
        key = self._guard.key(state)
        if type(key) is Refuse:
            return key
        self._push(state, key)
        return None

    def rekey(self, state: RequestState) -> Refuse | None:
        """Ask for the key of a waiting request anew and move it; the answer is a refusal."""
        key = self._guard.key(state)
        if type(key) is Refuse:
            return key
        self.discard(state)
        self._push(state, key)
        return None

    def _push(self, state: RequestState, key: SortKey) -> None:
        state.queue_key = (key, 0 if state.num_preemptions else 1, state.arrival, state.order)
        self._last_ticket += 1
        self.push_back(QueueEntry(*state.queue_key, self._last_ticket, state))
        self._journal.note_key(state, key)

    def push_back(self, entry: QueueEntry) -> None:
        """Queue an entry that was popped, under the key that it has."""
        state = entry.state
        heap = self._heaps.setdefault(state.group, [])
        if not heap and self._grouped:
            self._add_group(state.group)
        try:
            heapq.heappush(heap, entry)
        except Exception as error:
            heap[:] = [other for other in heap if other is not entry]
            heapq.heapify(heap)
            raise self._guard.error(f"key {entry.key!r} cannot be compared: {error}") from error
        state.ticket = entry.ticket
        self._num_waiting += 1

    def pop(self) -> QueueEntry | None:
        """Take the request that is served next; None when no request waits."""
        heap = self._head()
        if heap is None:
            return None
        entry = heapq.heappop(heap)
        entry.state.ticket = -1
        self._num_waiting -= 1
        if not heap and self._grouped:
            self._remove_group(entry.state.group)
        return entry

    def peek(self) -> QueueEntry | None:
        """The entry that `pop` would take."""
        heap = self._head()
        return heap[0] if heap else None

    def discard(self, state: RequestState) -> None:
        """Take a request out of the queue, if it is there."""
        if state.ticket < 0:
            return
        state.ticket = -1
        self._num_waiting -= 1
        self._num_stale += 1
        if self._num_stale > 64 and self._num_stale > self._num_waiting:
            self._compact()

    def _add_group(self, group: Hashable) -> None:
        self._ticket += 1
        entry = (self._guard.group_key(group), self._ticket, group)
        try:
            heapq.heappush(self._groups, entry)
        except Exception as error:
            self._groups = [other for other in self._groups if other[1] != self._ticket]
            heapq.heapify(self._groups)
            raise self._guard.error(
                f"group_key {entry[0]!r} cannot be compared: {error}"
            ) from error
        self._tickets[group] = self._ticket

    def _remove_group(self, group: Hashable) -> None:
        self._heaps.pop(group, None)
        self._tickets.pop(group, None)

    def _head(self) -> list[QueueEntry] | None:
        if not self._grouped:
            return self._skim(None)
        refreshes_left = len(self._groups)  # a key that changes at every call must not spin here
        while self._groups:
            stored, ticket, group = self._groups[0]
            if self._tickets.get(group) != ticket or self._skim(group) is None:
                heapq.heappop(self._groups)
                continue
            current = self._guard.group_key(group)
            # A group's key only grows while it waits, so one that is still the smallest after
            # its refresh is the smallest of all.
            if current == stored or refreshes_left <= 0:
                return self._heaps[group]
            refreshes_left -= 1
            self._refresh((current, ticket, group))
        return None

    def _refresh(self, entry: tuple[object, int, Hashable]) -> None:
        try:
            heapq.heapreplace(self._groups, entry)
        except Exception as error:
            raise self._guard.error(
                f"group_key {entry[0]!r} cannot be compared: {error}"
            ) from error

    def _skim(self, group: Hashable) -> list[QueueEntry] | None:
        """The group's heap with a live head, or None (and the group is removed)."""
        heap = self._heaps.get(group)
        while heap:
            if heap[0].is_live:
                return heap
            heapq.heappop(heap)
            self._num_stale -= 1
        self._remove_group(group)
        return None

    def _compact(self) -> None:
        for group in list(self._heaps):
            heap = [entry for entry in self._heaps[group] if entry.is_live]
            heapq.heapify(heap)
            if heap:
                self._heaps[group] = heap
            else:
                self._remove_group(group)
        self._groups = [e for e in self._groups if self._tickets.get(e[2]) == e[1]]
        heapq.heapify(self._groups)
        self._num_stale = 0
