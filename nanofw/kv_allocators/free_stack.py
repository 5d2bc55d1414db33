"""The blocks that no row owns and that hold nothing worth keeping."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import IntArray


class FreeStack:
    """A stack of block ids in one array: taking or giving k blocks is one slice."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)  # block 0 on top
        self._size = num_blocks

    def __len__(self) -> int:
        return self._size

    def take(self, num_blocks: int) -> IntArray:
        """int32[num_blocks] from the top; the caller knows that there are as many."""
        assert num_blocks <= self._size, "more blocks taken than are free"
        bottom = self._size - num_blocks
        taken = self._blocks[bottom : self._size][::-1].copy()
        self._size = bottom
        return taken

    def give(self, blocks: IntArray) -> None:
        """Put int32[k] blocks back."""
        top = self._size + len(blocks)
        assert top <= len(self._blocks), "more blocks given back than there are"
        self._blocks[self._size : top] = blocks
        self._size = top

    def refill(self) -> None:
        """All blocks are free again, in the order of the start."""
        self._blocks[:] = np.arange(len(self._blocks) - 1, -1, -1)
        self._size = len(self._blocks)

    def ids(self) -> IntArray:
        """int32[len] the free blocks, in no order that means anything."""
        return self._blocks[: self._size]
