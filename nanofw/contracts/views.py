"""What a policy may know: of a request, of the running requests, of the engine. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import xxhash

from nanofw.contracts.arrays import EMPTY_INT, IntArray, read_only
from nanofw.contracts.limits import Limits
from nanofw.contracts.requests import Request

SortKey: TypeAlias = Any
"""Anything sortable: a number, a string, a tuple of such. Smaller is served first."""


class RequestView:
    """What a policy may know of a request. Read-only.

    If `n` is above 1, each sample of a request runs and ends separately. Each sample has its own
    view, and this object stays the same until the sample ends. All samples share `id` and `index`:
    keep state by the view itself, which can be the key of a dict.

    Attributes:
        index: submission index, unique and increasing; samples of a request share it.
        sample_index: which of the request's samples it is, from 0.
        arrival: seconds on the engine's clock.
        max_tokens: the largest number of tokens that it may generate; never None.
        num_prompt_tokens: at least 1.
        arguments: what the request has under the policy's name, or None.
    """

    __slots__ = ("_prompt", "_request", "_salt", "arguments", "arrival", "index", "max_tokens",
                 "num_prompt_tokens", "sample_index")  # fmt: skip

    def __init__(
        self,
        request: Request,
        tokens: IntArray | None = None,
        *,
        index: int = 0,
        arrival: float = 0.0,
        max_tokens: int = 16,
        sample_index: int = 0,
        salt: int = 0,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._request, self._salt = request, salt
        self.index: int = index
        self.arrival: float = arrival
        self.sample_index: int = sample_index
        self.max_tokens: int = max_tokens
        self.arguments: Mapping[str, Any] | None = arguments
        self._prompt = request.prompt_token_ids if tokens is None else tokens
        self.num_prompt_tokens: int = len(self._prompt)

    @property
    def id(self) -> str:
        return self._request.id

    @property
    def client(self) -> str:
        return self._request.client

    @property
    def priority(self) -> int:
        """Smaller is more urgent."""
        return self._request.priority

    @property
    def deadline(self) -> float | None:
        """Seconds on the engine's clock."""
        return self._request.deadline

    @property
    def expected_output_tokens(self) -> int | None:
        """A guess of its output length that came with the request."""
        return self._request.expected_output_tokens

    @property
    def prompt_token_ids(self) -> IntArray:
        """int32[num_prompt_tokens], read-only."""
        return read_only(np.asarray(self._prompt, np.int32))

    def prefix_id(self, num_tokens: int) -> int:
        """64-bit identity of the prompt's first `num_tokens` tokens and of the cache salt.

        Two requests with equal identities can share the KV of these tokens. If the prompt is
        shorter than `num_tokens`, the whole prompt is used.
        """
        prefix = self.prompt_token_ids[:num_tokens]
        return xxhash.xxh3_64_intdigest(prefix.tobytes(), seed=self._salt)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated and committed so far.

        It does not change between `on_preempt` and the next `on_start`, and is final in
        `on_finish`.
        """
        return 0

    @property
    def num_computed_tokens(self) -> int:
        """Positions whose KV is computed, steps in flight included; 0 while it waits."""
        return 0

    @property
    def num_preemptions(self) -> int:
        return 0

    @property
    def is_running(self) -> bool:
        """Whether it has a row. In `on_finish`: whether it had one when it finished."""
        return False

    @property
    def row(self) -> int | None:
        """Its row while it runs."""
        return None

    @property
    def scheduled(self) -> float | None:
        """When a step first ran it, in seconds on the engine's clock."""
        return None

    @property
    def first_token(self) -> float | None:
        """When its first token was committed, in seconds on the engine's clock."""
        return None

    def __repr__(self) -> str:
        return f"<request {self.id!r}: {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"


class RunningView:
    """The running requests as arrays over k rows. Read-only, valid in that call."""

    @property
    def rows(self) -> IntArray:
        """int32[k], in order of admission. Paused rows are among them."""
        return EMPTY_INT

    @property
    def num_blocks(self) -> IntArray:
        """int32[k], blocks in each row's table."""
        return EMPTY_INT

    @property
    def num_tokens(self) -> IntArray:
        """int32[k], for each row the number of known tokens and tokens in flight."""
        return EMPTY_INT

    def request(self, row: int) -> RequestView:
        """The request in a row."""
        raise LookupError(f"row {row} is not running")

    def key(self, row: int) -> SortKey:
        """The last key that the policy gave to the request in this row."""
        raise LookupError(f"row {row} is not running")


class SchedulerView:
    """What a policy may know of the engine. Read-only, valid during the call that it is given to.

    Attributes:
        now: seconds on the engine's clock.
        limits: bounds of a step, and the pool.
        budget: tokens left in the step being planned.
    """

    __slots__ = ("budget", "limits", "now")

    def __init__(self, limits: Limits, now: float = 0.0) -> None:
        self.limits: Limits = limits
        self.now: float = now
        self.budget: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.limits.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.limits.block_size

    @property
    def max_num_seqs(self) -> int:
        return self.limits.max_num_seqs

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an admission could take now, evictable ones included."""
        return self.limits.num_blocks

    @property
    def num_running(self) -> int:
        """Requests that have a row, paused ones included."""
        return 0

    @property
    def num_decoding(self) -> int:
        """Rows that would decode in the step being planned."""
        return 0

    @property
    def num_waiting(self) -> int:
        return 0

    @property
    def running(self) -> RunningView:
        """The running requests."""
        return RunningView()

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of a waiting request that the prefix cache holds now. The cost grows with the
        length of the prompt."""
        return 0

    def blocks_needed(self, request: RequestView) -> int:
        """Blocks that its known tokens fill, cached ones included."""
        return self.limits.blocks_for(request.num_prompt_tokens + request.num_output_tokens)

    def blocks_to_take(self, request: RequestView) -> int:
        """The number of free blocks that the admission of a waiting request would take now: the
        blocks that it needs, minus cached blocks that running requests hold. The cost grows with
        the length of the prompt."""
        return self.blocks_needed(request)
