"""The cached blocks that no row owns, in the order in which they are evicted."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import IntArray, LongArray
from nanofw.errors import AllocatorError


class EvictionQueue:
    """Blocks from the least to the most recently used, in two arrays.

    A block that is taken out of the middle leaves a gap, which is passed over later.

        queue  7  3  9  3  5  .  .  .       index[3] = 3, so the 3 at 1 is a gap
               ^head          ^tail

    Python's OrderedDict costs less for one block and more for dozens, whose nodes lie far apart.
    """

    def __init__(self, num_blocks: int) -> None:
        self._queue = np.zeros(2 * num_blocks, np.int32)
        self._indices = np.arange(2 * num_blocks, dtype=np.int32)
        self._index = np.full(num_blocks, -1, np.int32)  # where each block is, if not below head
        self._head = self._tail = self._num = 0

    def __len__(self) -> int:
        return self._num

    def __contains__(self, block: int) -> bool:
        return bool(self._index[block] >= self._head)

    def ids(self) -> IntArray:
        """int32[len], the next victim first."""
        return self._queue[self._filled(self._tail)]

    def append(self, blocks: IntArray) -> None:
        """Queue int32[k] blocks, the first of them to be evicted first."""
        end = self._tail + len(blocks)
        if end > len(self._queue):
            self._close_gaps()
            end = self._tail + len(blocks)
        self._queue[self._tail : end] = blocks
        self._index[blocks] = self._indices[self._tail : end]
        self._num += len(blocks)
        self._tail = end

    def remove(self, blocks: IntArray) -> None:
        """Take int32[k] blocks out of it."""
        self._index[blocks] = -1
        self._num -= len(blocks)

    def pop(self, num_blocks: int) -> IntArray:
        """int32[num_blocks], the next victims; the caller knows that there are as many."""
        assert num_blocks <= self._num, "more blocks evicted than are cached"
        end = self._head + num_blocks
        if self._num == self._tail - self._head:
            blocks = self._queue[self._head : end].copy()
        else:
            filled = self._first_filled(num_blocks)
            blocks, end = self._queue[filled], int(filled[-1]) + 1
        self._num -= num_blocks
        self._head = end
        return blocks

    def check_integrity(self) -> None:
        """Raise `AllocatorError` unless places and count agree with the queue."""
        if not 0 <= self._head <= self._tail <= len(self._queue):
            raise AllocatorError(
                f"the eviction queue goes from {self._head} to {self._tail}, and has "
                f"{len(self._queue)} places"
            )
        queued = self._queue[self._head : self._tail]
        if len(queued) and not 0 <= queued.min() <= queued.max() < len(self._index):
            raise AllocatorError("the eviction queue has a block outside the pool")
        if not np.array_equal(self._indices, np.arange(len(self._queue))):
            raise AllocatorError("the places of the eviction queue are not numbered from 0")
        blocks = (self._index >= self._head).nonzero()[0]
        places = self._index[blocks]
        wrong = blocks[(places >= self._tail) | (self._queue[places % len(self._queue)] != blocks)]
        if len(wrong):
            place = int(self._index[wrong[0]])
            raise AllocatorError(
                f"block {wrong[0]} is said to be at {place} of the eviction queue, and is not there"
            )
        if self._num != len(blocks):
            raise AllocatorError(
                f"the eviction queue counts {self._num} blocks, and has {len(blocks)}"
            )

    def _first_filled(self, num_blocks: int) -> LongArray:
        """int64[num_blocks], the first indices that are not gaps."""
        width = num_blocks
        while True:
            filled = self._filled(self._head + width)
            if len(filled) >= num_blocks:
                return filled[:num_blocks]
            if self._head + width >= self._tail:
                self.check_integrity()
            width *= 2

    def _filled(self, end: int) -> LongArray:
        """Indices below `end` that are not gaps."""
        end = min(end, self._tail)
        queue, indices = self._queue[self._head : end], self._indices[self._head : end]
        return (self._index[queue] == indices).nonzero()[0] + self._head

    def _close_gaps(self) -> None:
        """Move everything to the front: there is room for as many blocks again."""
        blocks = self.ids()
        self._head, self._tail = 0, len(blocks)
        self._queue[: self._tail] = blocks
        self._index.fill(-1)
        self._index[blocks] = self._indices[: self._tail]
