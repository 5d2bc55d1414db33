"""From a plan to the device buffers of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.core.contracts.attention_backend import ForwardBatch
from nanofw.core.plan import StepPlan
from nanofw.core.types import IntArray
from nanofw.kernels.transfer import to_device
from nanofw.runtime.rows import RowState


@dataclass(slots=True)
class StepBatch:
    """A forward pass, and who samples after it.

    Attributes:
        forward: what the model takes.
        rows: int32[s], rows that sample, in the plan's order.
        positions: int32[s], the position that each of their new tokens will have.
        device_rows, device_positions: the same, int64 on the device.
    """

    forward: ForwardBatch
    rows: IntArray
    positions: IntArray
    device_rows: torch.Tensor
    device_positions: torch.Tensor


def make_batch(plan: StepPlan, state: RowState, block_size: int, device: torch.device) -> StepBatch:
    """The batch of a plan whose changes were applied to `state`.

    Everything that the host knows goes to the device as one array; token ids and block tables
    are there already.
    """
    ends = plan.starts + plan.num_tokens
    query_starts = np.zeros(len(plan.rows) + 1, np.int64)
    np.cumsum(plan.num_tokens, out=query_starts[1:])
    token_rows, positions = _tokens(plan, query_starts)
    blocks = state.host_block_tables[token_rows, positions // block_size]
    slots = blocks.astype(np.int64) * block_size + positions % block_size
    samples = slice(None) if plan.samples.all() else plan.samples
    rows, places = plan.rows[samples], ends[samples]
    packed = Packed(device)
    token_rows_at = packed.add(token_rows)
    positions_at = packed.add(positions)
    slots_at = packed.add(slots)
    logits_at = packed.add(query_starts[1:][samples] - 1)
    starts_at = packed.add(query_starts)
    ends_at = packed.add(ends)
    plan_rows_at = packed.add(plan.rows)
    rows_at = packed.add(rows)
    places_at = packed.add(places)
    packed.send()
    device_positions = packed[positions_at]
    width = -(-int(ends.max()) // block_size)
    forward = ForwardBatch(
        token_ids=state.token_ids[packed[token_rows_at], device_positions],
        positions=device_positions,
        slots=packed[slots_at],
        block_tables=state.block_tables[packed[plan_rows_at], :width],
        query_starts=packed[starts_at].to(torch.int32),
        context_lens=packed[ends_at].to(torch.int32),
        host_query_lens=plan.num_tokens,
        host_context_lens=ends,
        host_block_tables=state.host_block_tables[plan.rows, :width],
        num_decodes=plan.num_decodes,
        logits_indices=packed[logits_at],
    )
    return StepBatch(forward, rows, places, packed[rows_at], packed[places_at])


class Packed:
    """Several int64 arrays that travel to a device as one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[np.ndarray] = []
        self._parts: tuple[torch.Tensor, ...] = ()

    def add(self, array: np.ndarray) -> int:
        """Put an array in; returns where to find it again."""
        self._arrays.append(array)
        return len(self._arrays) - 1

    def send(self) -> None:
        """Start the transfer."""
        whole = to_device(np.concatenate(self._arrays, dtype=np.int64), self._device)
        self._parts = whole.split([len(array) for array in self._arrays])

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._parts[index]


def _tokens(plan: StepPlan, query_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[t] row and position of each token, rows one after another."""
    if query_starts[-1] == len(plan.rows):  # one token each
        return plan.rows.astype(np.int64), plan.starts.astype(np.int64)
    offsets = np.repeat(plan.starts - query_starts[:-1], plan.num_tokens)
    positions = np.arange(query_starts[-1]) + offsets
    return np.repeat(plan.rows.astype(np.int64), plan.num_tokens), positions
