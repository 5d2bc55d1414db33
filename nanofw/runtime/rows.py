"""What each row keeps on the device between steps: its token ids and its block table."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import StepPlan
from nanofw.kernels.transfer import to_device

_NOTHING = np.empty(0, np.int64)


class RowState:
    """Token ids and block tables by row; plans change them, steps read them.

    On the CPU the device's tables and the host's are the same memory.

    Attributes:
        token_ids: int32[rows, positions] on the device.
        block_tables: int32[rows, blocks] on the device; entries past a row's length are some
            valid block.
        host_block_tables: the same on the host.
        spare_row: the last row, which no request ever has.
    """

    def __init__(
        self, num_rows: int, num_positions: int, num_blocks_per_row: int, device: torch.device
    ) -> None:
        self._device = device
        self.spare_row: int = num_rows - 1
        self.host_block_tables: IntArray = np.zeros((num_rows, num_blocks_per_row), np.int32)
        self.block_tables: torch.Tensor = torch.from_numpy(self.host_block_tables).to(device)
        self.token_ids: torch.Tensor = torch.zeros(
            (num_rows, num_positions), dtype=torch.int32, device=device
        )

    def apply(self, plan: StepPlan) -> None:
        """Enter the plan's new rows and appended blocks, in one transfer."""
        if not plan.new and not len(plan.block_rows):
            return
        rows, positions, token_ids = _new_tokens(plan)
        block_rows, block_positions, block_ids = _blocks(plan)
        self.host_block_tables[block_rows, block_positions] = block_ids
        tokens_at = rows * self.token_ids.shape[1] + positions
        blocks_at = block_rows * self.block_tables.shape[1] + block_positions
        indices = np.concatenate((tokens_at, blocks_at))
        values = np.concatenate((token_ids, block_ids))
        packed = to_device(np.stack((indices, values)).astype(np.int64), self._device)
        indices_there, values_there = packed[0], packed[1].to(torch.int32)
        count = len(token_ids)
        if count:
            self.token_ids.view(-1).scatter_(0, indices_there[:count], values_there[:count])
        if self._device.type != "cpu":
            self.block_tables.view(-1).scatter_(0, indices_there[count:], values_there[count:])

    def append(self, rows: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Write int32[s] sampled tokens to int64[s] positions of int64[s] rows, on the device."""
        self.token_ids[rows, positions] = token_ids


def _new_tokens(plan: StepPlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 row and position, and the token, of all that new rows bring."""
    lengths = [len(new.token_ids) for new in plan.new]
    rows, positions = _first_entries([new.row for new in plan.new], lengths)
    return rows, positions, np.concatenate([_NOTHING, *(new.token_ids for new in plan.new)])


def _blocks(plan: StepPlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 row and position, and the block, of all that new rows bring and others are given."""
    counts = [len(new.block_ids) for new in plan.new]
    rows, positions = _first_entries([new.row for new in plan.new], counts)
    return (
        np.concatenate((rows, plan.block_rows)),
        np.concatenate((positions, plan.block_positions)),
        np.concatenate([_NOTHING, *(new.block_ids for new in plan.new), plan.block_ids]),
    )


def _first_entries(rows: list[int], counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """int64 row and position of the first `counts[i]` entries of each row, one after another."""
    if not rows:
        return _NOTHING, _NOTHING
    ends = np.cumsum(counts)
    positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return np.repeat(np.array(rows, np.int64), counts), positions
