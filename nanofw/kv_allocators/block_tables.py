"""The block tables of all rows, and what both paged allocators do with them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import (
    NO_EXTENSION,
    AllocatorConfig,
    Extension,
    KVAllocator,
)
from nanofw.errors import AllocatorError
from nanofw.kv_allocators.free_stack import FreeStack


class BlockTables(KVAllocator):
    """Tables of rows over one pool of blocks; the base of the paged allocators.

    Whether a row has room is one comparison of arrays, so a step in which no row crosses the
    border of a block costs the same for one row as for hundreds.
    """

    def __init__(self, config: AllocatorConfig) -> None:
        shape = config.max_num_seqs, config.max_blocks_per_row
        self._config = config
        self._block_size = config.block_size
        self._free = FreeStack(config.num_blocks)
        self._tables = np.zeros(shape, np.int32)
        self._num_row_blocks = np.zeros(config.max_num_seqs, np.int32)
        self._room = np.zeros(config.max_num_seqs, np.int32)  # tokens that fit in the blocks

    @property
    @abstractmethod
    def num_available(self) -> int:
        """Blocks that could be taken now: free and evictable."""

    @abstractmethod
    def _take(self, num_blocks: int) -> IntArray:
        """int32[num_blocks] blocks for private use; there are as many available."""

    def extend(self, rows: IntArray, num_tokens: IntArray) -> Extension | None:
        """See the contract."""
        short = (num_tokens > self._room.take(rows)).nonzero()[0]
        if not len(short):
            return NO_EXTENSION
        rows = rows[short].astype(np.int32, copy=False)
        present = self._num_row_blocks[rows]
        target = (num_tokens[short] + (self._block_size - 1)) // self._block_size
        added = target - present
        total = sum(added.tolist())  # there are few, and numpy's sum of few is slow
        if total > self.num_available:
            return None
        self._check_width(max(target.tolist()))
        self._num_row_blocks[rows] = target
        self._room[rows] = target * self._block_size
        rows, positions = flatten(rows, present, added, total)
        blocks = self._take(total)
        self._tables[rows, positions] = blocks
        return Extension(rows, positions, blocks)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _check_empty(self, row: int) -> None:
        if self._num_row_blocks[row]:
            raise AllocatorError(
                f"row {row} still owns {self._num_row_blocks[row]} blocks: "
                "release it before acquiring it again"
            )

    def _check_width(self, num_blocks: int) -> None:
        if num_blocks > self._config.max_blocks_per_row:
            raise AllocatorError(
                f"a row needs {num_blocks} blocks of {self._block_size} tokens, but tables "
                f"have {self._config.max_blocks_per_row} entries"
            )

    def _fill(self, row: int, blocks: IntArray) -> IntArray:
        """Make `blocks` the table of an empty row; returns them."""
        count = len(blocks)
        self._tables[row, :count] = blocks
        self._set_count(row, count)
        return blocks

    def _set_count(self, row: int, count: int) -> None:
        self._num_row_blocks[row] = count
        self._room[row] = count * self._block_size

    def _table(self, row: int) -> IntArray:
        """int32[b], a view of the row's blocks."""
        return self._tables[row, : self._num_row_blocks[row]]

    def _owners(self) -> IntArray:
        """int32[num_blocks], how many tables list each block. Raises when tables are broken."""
        total = self._config.num_blocks
        if not np.array_equal(self._room, self._num_row_blocks * self._block_size):
            raise AllocatorError("the room of a row is not that of its blocks")
        owners = np.zeros(total, np.int32)
        if self._num_row_blocks.min() < 0 or self._num_row_blocks.max() > self._tables.shape[1]:
            raise AllocatorError("a row has fewer blocks than none, or more than its table")
        for row in self._num_row_blocks.nonzero()[0]:
            table = self._table(int(row))
            if table.min() < 0 or table.max() >= total:
                raise AllocatorError(f"row {row} lists a block outside the pool: {table}")
            if len(np.unique(table)) != len(table):
                raise AllocatorError(f"row {row} lists a block twice: {table}")
            owners[table] += 1
        return owners

    def _check_free(self, owners: IntArray) -> None:
        free = self._free.ids()
        if len(free) != len(self._free):
            raise AllocatorError(f"{len(self._free)} blocks are counted as free, not {len(free)}")
        if len(free) and not 0 <= free.min() <= free.max() < len(owners):
            raise AllocatorError("a block outside the pool is free")
        if len(np.unique(free)) != len(free):
            raise AllocatorError("a block is free twice")
        if owners[free].any():
            owned = free[owners[free] > 0]
            raise AllocatorError(f"blocks {owned} are free, yet in a table")


def flatten(
    rows: IntArray, firsts: IntArray, counts: IntArray, total: int
) -> tuple[IntArray, IntArray]:
    """Row and position of `total` blocks: `counts[i]` of them from `firsts[i]` on in each row."""
    if total == len(rows):  # one each, the usual case
        return rows, firsts
    before = counts.cumsum(dtype=np.int32) - counts
    positions = np.arange(total, dtype=np.int32) + (firsts - before).repeat(counts)
    return rows.repeat(counts), positions
