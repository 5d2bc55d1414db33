"""What each row keeps on the device between steps: its token ids and its block table."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.core.plan import StepPlan
from nanofw.core.types import IntArray
from nanofw.kernels.transfer import to_device


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
        self.spare_row = num_rows - 1
        self.host_block_tables: IntArray = np.zeros((num_rows, num_blocks_per_row), np.int32)
        self.block_tables = torch.from_numpy(self.host_block_tables).to(device)
        self.token_ids = torch.zeros((num_rows, num_positions), dtype=torch.int32, device=device)

    def apply(self, plan: StepPlan) -> None:
        """Enter the plan's new rows and appended blocks."""
        if plan.new:
            self._enter(plan)
        if len(plan.block_rows):
            self._set_blocks(plan.block_rows, plan.block_positions, plan.block_ids)

    def append(self, rows: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Write int32[s] sampled tokens to int64[s] positions of int64[s] rows, on the device."""
        self.token_ids[rows, positions] = token_ids

    def _enter(self, plan: StepPlan) -> None:
        lengths = [len(new.token_ids) for new in plan.new]
        rows, positions = _places([new.row for new in plan.new], lengths)
        tokens = np.concatenate([new.token_ids for new in plan.new]).astype(np.int32)
        packed = to_device(np.stack((rows, positions, tokens)), self._device)
        self.token_ids[packed[0], packed[1]] = packed[2].to(torch.int32)
        counts = [len(new.block_ids) for new in plan.new]
        rows, positions = _places([new.row for new in plan.new], counts)
        self._set_blocks(rows, positions, np.concatenate([new.block_ids for new in plan.new]))

    def _set_blocks(self, rows: np.ndarray, positions: np.ndarray, block_ids: np.ndarray) -> None:
        self.host_block_tables[rows, positions] = block_ids
        if self._device.type != "cpu":
            packed = np.stack((rows, positions, block_ids)).astype(np.int64)
            on_device = to_device(packed, self._device)
            self.block_tables[on_device[0], on_device[1]] = on_device[2].to(torch.int32)


def _places(rows: list[int], counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """int64 row and position of the first `counts[i]` entries of each row, one after another."""
    ends = np.cumsum(counts)
    positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return np.repeat(np.array(rows, np.int64), counts), positions
