"""`paged`: blocks from one pool, nothing shared, nothing kept."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import (
    NO_MATCH,
    Allocation,
    AllocatorConfig,
    AllocatorStats,
    Match,
)
from nanofw.errors import AllocatorError
from nanofw.kv_allocators.block_tables import BlockTables


class PagedAllocator(BlockTables):
    """A free stack and the tables. Every block is free or in exactly one table."""

    works_by_block = True

    def __init__(self, options: None, config: AllocatorConfig) -> None:
        super().__init__(config)

    @property
    def num_available(self) -> int:
        """Free blocks."""
        return len(self._free)

    def match(self, token_ids: IntArray, salt: int = 0) -> Match:
        """Nothing is ever cached."""
        return NO_MATCH

    def acquire(
        self, row: int, token_ids: IntArray, match: Match | None, salt: int = 0
    ) -> Allocation | None:
        """See the contract."""
        self._check_empty(row)
        if match is not None and match.num_tokens:
            raise AllocatorError("a match that did not come from this allocator")
        needed = self._blocks_for(len(token_ids))
        self._check_width(needed)
        if needed > len(self._free):
            return None
        return Allocation(self._fill(row, self._take(needed)))

    def commit(self, rows: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """Nothing is ever shared."""

    def release(self, row: int) -> None:
        """See the contract."""
        self._free.give(self._table(row))
        self._set_count(row, 0)

    def reset(self) -> None:
        """See the contract; nothing is cached."""
        if self._num_row_blocks.any():
            raise AllocatorError("reset while rows own blocks")
        self._free.refill()

    def stats(self) -> AllocatorStats:
        """Counts of blocks; nothing is cached, so no counter ever moves."""
        total, free = self._config.num_blocks, len(self._free)
        return AllocatorStats(num_blocks=total, num_free=free, num_cached=0, num_used=total - free)

    def check_integrity(self) -> None:
        """See the contract: every block is free, or in exactly one table."""
        owners = self._owners()
        self._check_free(owners)
        if owners.max(initial=0) > 1:
            raise AllocatorError(f"blocks {np.flatnonzero(owners > 1)} have two owners")
        if len(self._free) + np.count_nonzero(owners) != self._config.num_blocks:
            raise AllocatorError("some blocks are neither free nor in a table")

    def _take(self, num_blocks: int) -> IntArray:
        return self._free.take(num_blocks)
