"""Contract `scheduler/1` (stable): whom to serve first.

The policy proposes, the core disposes. The core owns queues, budgets, chunking, preemption and
the accounting of blocks; a policy orders requests by a key and may, if it wants to, admit, cut
and give up. Whatever it answers, no block leaks, no budget is exceeded and no request is lost:
nonsense is a `PolicyError` that shows the decision.

A minimal policy:

    class ShortestPromptFirst(Policy):
        def key(self, request, now):
            return request.num_prompt_tokens
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import FinishReason

SortKey: TypeAlias = Any
"""Anything sortable: a number, a string, a tuple of such. Smaller is served first."""


class RequestView(Protocol):
    """What a policy may know of a request. Read-only."""

    @property
    def id(self) -> str: ...
    @property
    def index(self) -> int:
        """Submission index, unique and increasing."""
        ...

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        ...

    @property
    def client(self) -> str: ...
    @property
    def priority(self) -> int:
        """Smaller is more urgent."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds on the engine's clock."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int:
        """Tokens generated and committed so far."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens that it may generate (resolved: never None)."""
        ...

    @property
    def expected_output_tokens(self) -> int | None:
        """A guess of its output length that came with the request."""
        ...

    @property
    def num_preemptions(self) -> int: ...


class SchedulerView(Protocol):
    """What a policy may know of the engine while it decides. Read-only, valid in that call."""

    @property
    def now(self) -> float: ...
    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        ...

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an admission could take now, evictable ones included."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def budget(self) -> int:
        """Tokens left in the step being planned."""
        ...

    @property
    def running(self) -> RunningView:
        """The running requests."""
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of the request that the prefix cache holds now. Costs a walk of its prompt."""
        ...

    def blocks_needed(self, request: RequestView) -> int:
        """Blocks that its known tokens fill, cached ones included."""
        ...


class RunningView(Protocol):
    """The running requests as arrays over k rows. Read-only, valid in that call."""

    @property
    def rows(self) -> IntArray:
        """int32[k], in order of admission."""
        ...

    @property
    def num_blocks(self) -> IntArray:
        """int32[k], blocks in each row's table."""
        ...

    @property
    def num_tokens(self) -> IntArray:
        """int32[k], tokens known or in flight of each row."""
        ...

    def request(self, row: int) -> RequestView:
        """The request in a row."""
        ...

    def key(self, row: int) -> SortKey:
        """The key under which the request in a row was queued."""
        ...


class Policy(ABC):
    """Base of scheduling policies. Only `key` must be written.

    A policy may keep state of its own. It is called from one thread and never concurrently.

    Attributes:
        window: when positive, the first `window` waiting requests by `key` get new keys from
            `window_key` in each step that could admit one: for keys that change without an
            event. Bounds the cost of a step.
        skip_ahead: how many requests past a head that does not fit may be tried in one step.
            0: the core stops at the head, so that no request overtakes it.
    """

    window: int = 0
    skip_ahead: int = 0

    @abstractmethod
    def key(self, request: RequestView, now: float) -> SortKey:
        """The request's key; smaller is served first.

        Called when the request arrives and when it returns after a preemption, and not again
        while it waits: a step costs O(what runs, times the logarithm of what waits). Keys
        must be comparable with each other. Among equals, preempted requests come before those
        that never started, then the earlier arrival. Linear ageing is a static key:
        `cost + weight * request.arrival` orders as `cost - weight * waited` does at any time.

        An exception here refuses that request alone.
        """

    def group(self, request: RequestView) -> Hashable:
        """The group that the request queues in, a client say. One heap per group.

        Called once for each request, after `on_arrival` and before `key`.
        """
        return None

    def group_key(self, group: Hashable, now: float) -> SortKey:
        """The key of a group that has waiting requests; the smallest is served first.

        Read anew when the group is about to be served, so it may grow at any time; it must not
        shrink while the group has waiting requests. Only called when `group` is overridden.
        """
        return 0

    def window_key(self, requests: Sequence[RequestView], view: SchedulerView) -> Sequence[SortKey]:
        """New keys of the first `window` waiting requests, one each, in their order."""
        return range(len(requests))

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        """Whether the request may enter now, though the core has room for it.

        False makes it a head that does not fit (see `skip_ahead`). When nothing runs, a policy
        that admits no request is a `PolicyError`: nothing could ever change.
        """
        return True

    def chunk(self, request: RequestView, view: SchedulerView) -> int | None:
        """Most prefill tokens of the request in this step, at least 1; None: as configured."""
        return None

    def victim(self, running: RunningView, for_request: RequestView | None) -> int | None:
        """The row to give up, or None.

        `for_request` None: the pool is short for the running requests. None lets the core
        choose: the greatest key, the latest arrival among equals.
        Otherwise: a waiting request with a smaller key than some running one does not fit;
        only rows of a greater key than its own may be named. None leaves it waiting, and is
        what the base class answers.
        """
        return None

    def on_arrival(self, request: RequestView, now: float) -> None:
        """The request was accepted; called just before `key`."""

    def on_start(self, row: int, request: RequestView, now: float) -> None:
        """The request entered the running set in `row`, first or again."""

    def on_preempt(self, row: int, request: RequestView, now: float) -> None:
        """The request left `row` and waits again; `key` is called next."""

    def on_progress(self, rows: IntArray, num_tokens: IntArray, num_decodes: int) -> None:
        """int32[n] rows and the tokens that each computes in the plan just made. Once a step.

        The first `num_decodes` rows generate; the rest compute prompts, or recompute after a
        preemption. `on_start` of each row was called before.
        """

    def on_finish(self, request: RequestView, reason: FinishReason, now: float) -> None:
        """The request finished, whether it ran or not. Once for each that `on_arrival` saw."""


def check_chunk(value: Any) -> int:
    """The value as a chunk length, or ValueError with what is wrong with it."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        chunk = operator.index(value)
    except TypeError:
        raise ValueError(f"chunk must be an int or None, not {value!r}") from None
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    return chunk
