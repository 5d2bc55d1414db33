"""Which row owns which blocks, as the engine was told: to see what cannot be."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import Extension
from nanofw.contracts.limits import Limits

NOTED_STEPS = 64
"""So many extensions are looked at together: numpy's cost for each call is shared."""
FEW = 4
"""Up to this number of blocks are put into tables one by one."""


class BlockOwners:
    """The tables of all rows, and how many rows have each block.

    Attributes:
        num_owned: blocks that are in at least one table.
    """

    def __init__(self, limits: Limits) -> None:
        width = limits.blocks_for(limits.max_model_len) + 1
        self._tables = np.zeros((limits.max_rows, width), np.int32)
        self._num_row_blocks = np.zeros(limits.max_rows, np.int32)
        self._owners = np.zeros(limits.num_blocks, np.int32)
        self._noted: list[Extension] = []
        self.num_owned: int = 0

    def num_blocks_of(self, row: int) -> int:
        """Blocks in the table of a row."""
        return int(self._num_row_blocks[row])

    def num_owned_of(self, blocks: IntArray) -> int:
        """How many of these blocks are in a table."""
        return int(np.count_nonzero(self._owners[blocks]))

    def acquire(self, row: int, blocks: IntArray, num_shared: int) -> str:
        """An empty row gets a table; returns what is wrong with it, or nothing.

        Args:
            num_shared: blocks at the head that were matched, and that other rows may have.
        """
        if self._num_row_blocks[row]:
            return f"the row still has {self._num_row_blocks[row]} blocks"
        if len(blocks) > self._tables.shape[1]:
            return f"{len(blocks)} blocks are more than a table has room for"
        if len(set(blocks.tolist())) < len(blocks):  # np.unique imports numpy.ma at first
            return f"a block is in the table twice: {blocks}"
        owned = self._owners[blocks[num_shared:]].nonzero()[0]
        if len(owned):
            taken = int(blocks[num_shared + owned[0]])
            return f"block {taken} belongs to row {self._row_of(taken)}"
        if num_shared:
            self.num_owned += int((self._owners[blocks] == 0).sum())
            self._owners[blocks] += 1
        else:
            self.num_owned += len(blocks)
            self._owners[blocks] = 1
        self._tables[row, : len(blocks)] = blocks
        self._num_row_blocks[row] = len(blocks)
        return ""

    def extend(self, given: Extension) -> str:
        """Rows get further blocks; returns what is wrong with them, or nothing.

        Only that the blocks are in the pool and belonged to no row is seen at once. The rest is
        looked at with many extensions at a time, or before the next request begins or ends.
        """
        blocks = given.block_ids
        try:  # a negative number would count from the end
            owners = self._owners.take(blocks.view(np.uint32))
        except IndexError:
            return f"{blocks} are not all blocks of the pool"
        if any(owners.tolist()):  # there are few, and numpy's own look at few is slow
            taken = int(blocks[owners.nonzero()[0][0]])
            return f"block {taken} belongs to row {self._row_of(taken)}"
        self._noted.append(given)
        return self.settle() if len(self._noted) == NOTED_STEPS else ""

    def settle(self) -> str:
        """Put what was noted into the tables; returns what is wrong with it, or nothing."""
        if not self._noted:
            return ""
        noted, self._noted = self._noted, []
        rows = np.concatenate([given.rows for given in noted])
        positions = np.concatenate([given.positions for given in noted])
        blocks = np.concatenate([given.block_ids for given in noted])
        if len(rows) > FEW and self._put_all(rows, positions, blocks):
            return ""
        for row, position, block in zip(
            rows.tolist(), positions.tolist(), blocks.tolist(), strict=True
        ):
            if problem := self._put(row, position, block):
                return problem
        return ""

    def _put_all(self, rows: IntArray, positions: IntArray, blocks: IntArray) -> bool:
        """Append blocks to tables without a loop; False if that is not it, and then only entries
        past the ends of tables have changed.

        A block that is there twice, or two for one entry of a table, are seen by writing and
        reading back: that is cheaper than sorting.
        """
        max_rows, width = self._tables.shape
        if rows.min() < 0 or rows.max() >= max_rows or self._owners[blocks].any():
            return False
        before = self._num_row_blocks
        after = before + np.bincount(rows, minlength=max_rows).astype(np.int32)
        present = before[rows]
        fits = (positions >= present) & (positions < after[rows]) & (present > 0)
        if not fits.all() or after.max() > width:
            return False
        order = np.arange(1, len(blocks) + 1, dtype=np.int32)
        self._owners[blocks] = order
        self._tables[rows, positions] = blocks
        once = (self._owners[blocks] == order) & (self._tables[rows, positions] == blocks)
        if not once.all():
            self._owners[blocks] = 0
            return False
        self._owners[blocks] = 1
        self._num_row_blocks = after
        self.num_owned += len(blocks)
        return True

    def release(self, row: int) -> None:
        """The row has no blocks any more."""
        table = self._tables[row, : self._num_row_blocks[row]]
        left = self._owners[table] - 1
        self._owners[table] = left
        self.num_owned -= len(left) - int(np.count_nonzero(left))
        self._num_row_blocks[row] = 0

    def reset(self) -> None:
        """No row has blocks."""
        self._num_row_blocks[:] = 0
        self._owners[:] = 0
        self._noted.clear()
        self.num_owned = 0

    def _put(self, row: int, position: int, block: int) -> str:
        """Append a block to a table, or replace one that the row gives back."""
        if not 0 <= row < len(self._num_row_blocks) or not self._num_row_blocks[row]:
            return f"block {block} is put into row {row}, which has no table"
        if self._owners[block]:
            return f"block {block} belongs to row {self._row_of(block)}"
        count = int(self._num_row_blocks[row])
        if not 0 <= position <= count:
            return f"row {row} has {count} blocks, and block {block} is put at {position}"
        if position == self._tables.shape[1]:
            return f"{count + 1} blocks of row {row} are more than a table has room for"
        if position < count:
            before = self._tables[row, position]
            self._owners[before] -= 1
            self.num_owned -= int(self._owners[before] == 0)
        else:
            self._num_row_blocks[row] = count + 1
        self._tables[row, position] = block
        self._owners[block] = 1
        self.num_owned += 1
        return ""

    def _row_of(self, block: int) -> int:
        """A row whose table has the block."""
        for row, count in enumerate(self._num_row_blocks.tolist()):
            if (self._tables[row, :count] == block).any():
                return row
        return -1
