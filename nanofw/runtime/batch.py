"""A plan on its device: what each row keeps there between steps, and the tensors of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.attention_backend import NO_ARGUMENTS, ForwardBatch
from nanofw.contracts.plan import StepPlan
from nanofw.kernels.linear import padded_rows
from nanofw.kernels.transfer import to_device
from nanofw.runtime.logprobs import RowLogprobs

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


@dataclass(slots=True)
class MicroBatch:
    """A part of a plan that the model computes at once. Fields as in `StepPlan`."""

    rows: IntArray
    num_tokens: IntArray
    starts: IntArray
    samples: BoolArray
    num_decodes: int


@dataclass(slots=True)
class StepBatch:
    """The micro-batches of a step, and the rows that sample after them.

    Attributes:
        micro_batches: what the model takes, in this order; empty where a graph was replayed.
        rows: int32[s], rows that sample, in the plan's order.
        positions: int32[s], the position that each of their new tokens will have.
        device_rows, device_positions: the same, int64 on the device.
        graph_size: the bucket whose graph ran the step; 0: it ran eagerly.
        logprobs, prompt_logprobs: of the sampled tokens and of prompt tokens, where rows asked,
            once they were found.
        embeddings: of prompts that the step completed, where rows asked.
    """

    micro_batches: list[ForwardBatch]
    rows: IntArray
    positions: IntArray
    device_rows: torch.Tensor
    device_positions: torch.Tensor
    graph_size: int = 0
    logprobs: RowLogprobs | None = None
    prompt_logprobs: RowLogprobs | None = None
    embeddings: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])


def make_batch(
    plan: StepPlan,
    state: RowState,
    block_size: int,
    device: torch.device,
    max_micro_batch_tokens: int | None = None,
    arguments: Mapping[int, object] = NO_ARGUMENTS,
) -> StepBatch:
    """The batch of a plan whose changes were applied to `state`.

    Args:
        arguments: for the model, by row.
    """
    parts = split(plan, max_micro_batch_tokens)
    rows, positions = plan.rows, plan.starts + plan.num_tokens
    if not plan.samples.all():
        rows, positions = rows[plan.samples], positions[plan.samples]
    packed = Packed(device)
    rows_at, positions_at = packed.add_array(rows), packed.add_array(positions)
    packed.send()
    return StepBatch(
        micro_batches=[
            _forward_batch(part, state, block_size, device, arguments) for part in parts
        ],
        rows=rows,
        positions=positions,
        device_rows=packed[rows_at],
        device_positions=packed[positions_at],
    )


def split(plan: StepPlan, max_tokens: int | None) -> list[MicroBatch]:
    """The plan as micro-batches of at most `max_tokens` tokens; None: as one.

    Rows stay in order and whole, unless one alone is longer: its parts follow one another.
    """
    if not len(plan.rows):
        return []
    if max_tokens is None or plan.total_tokens <= max_tokens:
        return [MicroBatch(plan.rows, plan.num_tokens, plan.starts, plan.samples, plan.num_decodes)]
    pieces: list[list[tuple[int, int, int]]] = [[]]  # (index in the plan, first token, tokens)
    room = max_tokens
    for index, count in enumerate(plan.num_tokens.tolist()):
        for first in range(0, count, max_tokens):
            length = min(max_tokens, count - first)
            if length > room:
                pieces.append([])
                room = max_tokens
            pieces[-1].append((index, first, length))
            room -= length
    return [_part(plan, part) for part in pieces]


def _part(plan: StepPlan, pieces: list[tuple[int, int, int]]) -> MicroBatch:
    columns = (np.array(column, np.int32) for column in zip(*pieces, strict=True))
    indices, firsts, lengths = columns
    is_last = firsts + lengths == plan.num_tokens[indices]
    return MicroBatch(
        rows=plan.rows[indices],
        num_tokens=lengths,
        starts=plan.starts[indices] + firsts,
        samples=plan.samples[indices] & is_last,
        num_decodes=int((indices < plan.num_decodes).sum()),
    )


def _forward_batch(
    part: MicroBatch,
    state: RowState,
    block_size: int,
    device: torch.device,
    arguments: Mapping[int, object],
) -> ForwardBatch:
    """Everything that the host knows goes to the device as one array; token ids and block
    tables are there already."""
    ends = part.starts + part.num_tokens
    query_starts = np.zeros(len(part.rows) + 1, np.int64)
    np.cumsum(part.num_tokens, out=query_starts[1:])
    token_rows, positions = _tokens(part, query_starts)
    blocks = state.host_block_tables[token_rows, positions // block_size]
    slots = blocks.astype(np.int64) * block_size + positions % block_size
    padding = padded_rows(len(slots)) - len(slots) if device.type == "cpu" else 0
    packed = Packed(device)
    token_rows_at = packed.add_array(np.pad(token_rows, (0, padding)))
    positions_at = packed.add_array(np.pad(positions, (0, padding)))
    slots_at = packed.add_array(np.pad(slots, (0, padding), constant_values=-1))
    logits_at = packed.add_array(query_starts[1:][part.samples] - 1)
    starts_at = packed.add_array(query_starts)
    ends_at = packed.add_array(ends)
    rows_at = packed.add_array(part.rows)
    packed.send()
    device_positions = packed[positions_at]
    width = -(-int(ends.max()) // block_size)
    return ForwardBatch(
        token_ids=state.token_ids[packed[token_rows_at], device_positions],
        positions=device_positions,
        slots=packed[slots_at],
        block_tables=state.block_tables[packed[rows_at], :width],
        query_starts=packed[starts_at].to(torch.int32),
        context_lens=packed[ends_at].to(torch.int32),
        host_query_lens=part.num_tokens,
        host_context_lens=ends,
        host_block_tables=state.host_block_tables[part.rows, :width],
        num_decodes=part.num_decodes,
        logits_indices=packed[logits_at],
        rows=part.rows,
        arguments=arguments,
    )


class Packed:
    """Several int64 arrays that travel to a device as one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[np.ndarray] = []
        self._parts: tuple[torch.Tensor, ...] = ()

    def add_array(self, array: np.ndarray) -> int:
        """Put an array in; returns where to find it again."""
        self._arrays.append(array)
        return len(self._arrays) - 1

    def send(self) -> None:
        """Start the transfer."""
        whole = to_device(np.concatenate(self._arrays, dtype=np.int64), self._device)
        self._parts = whole.split([len(array) for array in self._arrays])

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._parts[index]


def _tokens(part: MicroBatch, query_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[t] row and position of each token, rows one after another."""
    if query_starts[-1] == len(part.rows):  # one token each
        return part.rows.astype(np.int64), part.starts.astype(np.int64)
    offsets = np.repeat(part.starts - query_starts[:-1], part.num_tokens)
    positions = np.arange(query_starts[-1]) + offsets
    return np.repeat(part.rows.astype(np.int64), part.num_tokens), positions
