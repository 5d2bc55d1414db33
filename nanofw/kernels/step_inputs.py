"""What a step of any rows needs, gathered on the device from what each row keeps there.

Like `decode_inputs`, for rows of any number of tokens: the host sends four numbers a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanofw.kernels.decode_inputs import DecodeInputs
from nanofw.kernels.dispatch import uses_triton


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Buffers of n lines with t tokens in all, laid out one line after the other.

    Attributes:
        token_ids: int32[t].
        positions, slots: int64[t]; slot -1 for tokens past the last line's.
        query_starts: int32[n + 1], first token of each line.
        context_lens: int32[n], keys, this step's included; 0 for padding.
        block_tables: int32[n, w].
        rows, next_positions: int64[n], of the lines that sample, in their order, row and position
            of the token to be sampled; then the spare row and position 0.
        logits_indices: int64[n], the last token of each of them; then 0.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    rows: torch.Tensor
    next_positions: torch.Tensor
    logits_indices: torch.Tensor

    @classmethod
    def allocate(cls, num_tokens: int, lines: DecodeInputs) -> StepInputs:
        """Buffers of `num_tokens` tokens; what is kept by line shares the memory of `lines`."""
        device, size = lines.rows.device, len(lines.rows)

        def zeros(length: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(length, dtype=dtype, device=device)

        return cls(
            zeros(num_tokens, torch.int32), zeros(num_tokens), zeros(num_tokens) - 1,
            zeros(size + 1, torch.int32), lines.context_lens, lines.block_tables,
            lines.rows, lines.next_positions, zeros(size),
        )  # fmt: skip

    def first(self, num_tokens: int, num_lines: int) -> StepInputs:
        """The first lines and tokens, in the same memory."""
        return StepInputs(
            self.token_ids[:num_tokens], self.positions[:num_tokens], self.slots[:num_tokens],
            self.query_starts[: num_lines + 1], self.context_lens[:num_lines],
            self.block_tables[:num_lines], self.rows[:num_lines],
            self.next_positions[:num_lines], self.logits_indices[:num_lines],
        )  # fmt: skip


def gather_step_inputs(
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    into: StepInputs,
) -> None:
    """Fill buffers of n lines.

    Args:
        lines: int64[n, 4]: row and first position of each line; tokens of all lines up to and
            with it; and, not of this line, the index of the n-th line that samples, or -1. A
            padded line, after all others, has no token and position 0.
        token_ids: int32[rows, positions]; the last row is the spare one.
        block_tables: int32[rows, w]; of a line's table, the blocks of its context are copied.
    """
    if uses_triton(lines):
        from nanofw.kernels.triton import step_inputs as triton_step_inputs

        triton_step_inputs.gather_step_inputs(lines, token_ids, block_tables, block_size, into)
        return
    rows, starts, ends, sources = lines.unbind(1)
    query_starts = torch.cat((ends.new_zeros(1), ends))
    counts = query_starts.diff()
    _gather_tokens(rows, starts, query_starts, token_ids, block_tables, block_size, into)
    into.query_starts.copy_(query_starts)
    into.context_lens.copy_(starts + counts)
    into.block_tables.copy_(block_tables[rows])
    line = sources.clamp_min(0)
    samples = sources >= 0
    into.rows.copy_(torch.where(samples, rows[line], token_ids.shape[0] - 1))
    into.next_positions.copy_(torch.where(samples, (starts + counts)[line], 0))
    into.logits_indices.copy_(torch.where(samples, ends[line] - 1, 0))


def _gather_tokens(
    rows: torch.Tensor,
    starts: torch.Tensor,
    query_starts: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    into: StepInputs,
) -> None:
    places = torch.arange(len(into.token_ids), device=rows.device)
    is_real = places < query_starts[-1]
    line = torch.searchsorted(query_starts[1:], places, right=True).clamp_max(len(rows) - 1)
    positions = torch.where(is_real, starts[line] + places - query_starts[line], 0)
    owners = rows[line]
    blocks = block_tables[owners, positions // block_size].long()
    slots = blocks * block_size + positions % block_size
    into.token_ids.copy_(token_ids[owners, positions])
    into.positions.copy_(positions)
    into.slots.copy_(torch.where(is_real, slots, -1))
