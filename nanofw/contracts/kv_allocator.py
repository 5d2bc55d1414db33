"""Contract `kv_allocator/2` (provisional): where the keys and values of a request live.

The pool has `num_blocks` blocks of `block_size` tokens. A row owns a table of blocks; position
p of its tokens lives in slot `p % block_size` of block `table[p // block_size]`. Only the allocator
writes block tables. It sees token ids only as arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from nanofw.contracts.arrays import EMPTY_COPIES, EMPTY_INT, IntArray


@dataclass(frozen=True, slots=True)
class Match:
    """A cached prefix, valid until the next call that changes the allocator.

    Attributes:
        num_tokens: cached tokens, a multiple of the block size.
        block_ids: int32[num_tokens / block_size], the blocks that hold them.
    """

    num_tokens: int
    block_ids: IntArray


NO_MATCH = Match(0, EMPTY_INT)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The blocks of a row that was empty.

    Attributes:
        block_ids: int32[ceil(t / block_size)], the row's table.
        copies: int32[c, 2], blocks to copy (source, target) before the step.
    """

    block_ids: IntArray
    copies: IntArray = field(default_factory=lambda: EMPTY_COPIES)


@dataclass(frozen=True, slots=True)
class Extension:
    """Blocks appended to tables: `table[rows[i], positions[i]] = block_ids[i]`.

    Attributes:
        rows, positions, block_ids: int32[m].
        copies: int32[c, 2], blocks to copy (source, target) before the step.
    """

    rows: IntArray
    positions: IntArray
    block_ids: IntArray
    copies: IntArray = field(default_factory=lambda: EMPTY_COPIES)


NO_EXTENSION = Extension(EMPTY_INT, EMPTY_INT, EMPTY_INT)
"""The answer where each row has room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStats:
    """Hits, evictions and duplicates since the last `reset`, and the current numbers of blocks.

    free + cached + used == total, at any time: a block is either free, or cached (holds
    reusable content, has no owner), or used (in at least one table).

    Attributes:
        num_hits: blocks that `acquire` took from a match. An allocator cannot tell a first
            admission from a return after a preemption: the hit rate that users read comes from
            the scheduler (`num_cached_tokens`, `num_recovered_tokens`).
        num_evictions: cached blocks that were overwritten because free blocks were missing.
        num_duplicates: blocks that were committed although another block already had the same
            content, because several rows computed it at the same time.
    """

    num_blocks: int
    num_free: int
    num_cached: int
    num_used: int
    num_hits: int = 0
    num_evictions: int = 0
    num_duplicates: int = 0


class KVAllocator(ABC):
    """Base of allocators. Constructed as `target(options, AllocatorConfig)`.

    The ordinary life of a row:

        match = allocator.match(tokens[:-1], salt)             # what the cache holds
        allocation = allocator.acquire(row, tokens, match, salt)  # None: no room
        allocator.extend(rows, num_tokens)                     # room for the next token
        allocator.commit(rows, num_tokens, tokens)             # its blocks may be shared
        allocator.release(row)

    `salt` separates prefixes that have equal tokens but other KV or other owners; 0: no salt.
    Blocks are shared only under equal salts.

    The same calls give the same blocks in every run: random numbers need a seed, from the options.

    Attributes:
        works_by_block: whether `extend` and `commit` do nothing for a row that stays within its
            last block, and `extend` finds as many blocks as `num_available` says. A simulation then
            skips such calls. If a class sets the attribute, and a subclass of it overrides one of
            these methods, the attribute is ignored.
    """

    works_by_block: bool = False

    @property
    @abstractmethod
    def num_available(self) -> int:
        """Blocks that could be taken now: free and evictable."""

    @abstractmethod
    def match(self, token_ids: IntArray, salt: int = 0) -> Match:
        """The longest prefix of int32[t] tokens that is cached under the salt. Changes nothing.

        A request must compute at least one token, so a caller passes all tokens except the last
        one. The match may then be passed to `acquire` together with all tokens.
        """

    def num_cached_tokens(self, token_ids: IntArray, salt: int = 0) -> int:
        """The length of the match of int32[t] tokens. Changes nothing.

        Policies may call it for many waiting requests in each step. Override it if you can compute
        the length faster than `match`.
        """
        return self.match(token_ids, salt).num_tokens

    @abstractmethod
    def acquire(
        self, row: int, token_ids: IntArray, match: Match | None, salt: int = 0
    ) -> Allocation | None:
        """Give an empty row blocks for all of its int32[t] tokens.

        `match` is a match of these tokens, or of the tokens at their beginning. The allocator has
        not changed since it was made. The row's table must begin with the blocks of `match`. The
        other tokens get new blocks. If there is not enough room, return None and change nothing.
        """

    @abstractmethod
    def extend(self, rows: IntArray, num_tokens: IntArray) -> Extension | None:
        """Make room for `num_tokens[i]` tokens in total in each row (int32[n] both).

        If there is not enough room for all rows, return None and change nothing. Rows that
        already have enough room get no blocks.
        """

    @abstractmethod
    def commit(self, rows: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """The first `num_tokens[i]` tokens of each row are computed and may be shared.

        Called when the step that wrote them was collected without error. `tokens[row]` holds
        the row's token ids (int32[max_num_seqs, t]). Read them, but do not keep them. The
        engine never passes a row with fewer tokens than before, or a row whose step failed.
        """

    @abstractmethod
    def release(self, row: int) -> None:
        """Take back the blocks of the row. Idempotent: an empty row stays empty."""

    @abstractmethod
    def reset(self) -> None:
        """Begin anew: forget cached content and counters, and seed random numbers again. After
        that, give out the same blocks as a new allocator would. Called with no row in use."""

    @abstractmethod
    def stats(self) -> AllocatorStats:
        """Counters for reports."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise `AllocatorError` if the accounting does not add up. For tests; may be slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Facts that an allocator is constructed with.

    Attributes:
        num_blocks: blocks in the pool; their ids are 0 to `num_blocks` - 1.
        block_size: tokens in a block.
        max_num_seqs: rows, at most; they are numbered from 0.
        max_blocks_per_row: blocks in the table of a row, at most.
        name: what the configuration calls the allocator.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_blocks_per_row: int
    name: str = ""
