"""What the scheduler decides beside its plans, for those who ask why."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import NamedTuple

from nanofw.contracts.scheduler import SortKey
from nanofw.engine.request_state import RequestState


class Blocker(StrEnum):
    """What kept the next waiting request out of a step."""

    ROW = "row"  # no row is free
    BUDGET = "budget"  # the step's tokens are used up
    BLOCKS = "blocks"  # the pool has no room for its prompt
    PREFILL = "prefill"  # other prompts are in the middle of their prefill
    POLICY = "policy"  # the policy does not admit it now


class KeyNote(NamedTuple):
    """A request got a key from the policy. `request_id` names the sample."""

    request_id: str
    key: SortKey
    group: Hashable


class PreemptionNote(NamedTuple):
    """A request was given up.

    Attributes:
        needed_by: the waiting request that takes its place, or the running ones that each needed
            a block when the pool was short.
    """

    request_id: str
    needed_by: tuple[str, ...]


class Journal:
    """Notes of decisions, taken while somebody reads them.

    Attributes:
        is_read: keys, orders and preemptions are noted; the reader takes them.
        keys, preemptions: since they were last taken, in their order.
        window: ids in the order in which the last plan tried them, where the policy has a window.
        blocker: what ended the admission of the last plan while requests waited; always noted.
        head: the request that it kept out, where that was looked at.
    """

    def __init__(self) -> None:
        self.is_read: bool = False
        self.keys: list[KeyNote] = []
        self.preemptions: list[PreemptionNote] = []
        self.window: tuple[str, ...] = ()
        self.blocker: Blocker | None = None
        self.head: RequestState | None = None

    def note_key(self, state: RequestState, key: SortKey) -> None:
        """The policy gave the request a key, first or anew."""
        if self.is_read:
            self.keys.append(KeyNote(state.sample_id, key, state.group))

    def note_preemption(self, state: RequestState, needed_by: Sequence[RequestState]) -> None:
        """The request was given up for others."""
        if self.is_read:
            ids = tuple(other.sample_id for other in needed_by)
            self.preemptions.append(PreemptionNote(state.sample_id, ids))

    def note_window(self, states: Sequence[RequestState]) -> None:
        """The requests of the policy's window, in the order of their new keys."""
        if self.is_read:
            self.window = tuple(state.sample_id for state in states)

    def block(self, blocker: Blocker | None, head: RequestState | None = None) -> None:
        """The admission of a plan is over; None: no request waits."""
        self.blocker, self.head = blocker, head

    def take(self) -> tuple[list[KeyNote], list[PreemptionNote], tuple[str, ...]]:
        """Keys, preemptions and the window's order since the last call."""
        taken = self.keys, self.preemptions, self.window
        self.keys, self.preemptions, self.window = [], [], ()
        return taken
