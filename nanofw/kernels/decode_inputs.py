"""What a decode step needs, gathered on the device from what each row keeps there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanofw.kernels.dispatch import uses_triton


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Buffers of b lines, one token each.

    Attributes:
        rows: int64[b], the row of each line.
        token_ids: int32[b], its last token.
        positions, next_positions: int64[b], where that token stands, and one further.
        slots: int64[b], where its KV goes; -1 for padding.
        context_lens: int32[b], keys, this token's included; 0 for padding.
        block_tables: int32[b, w].
    """

    rows: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    next_positions: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor

    @classmethod
    def allocate(cls, size: int, width: int, device: torch.device) -> DecodeInputs:
        """Buffers of `size` lines of padding, tables of `width` blocks."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            zeros(size), zeros(size, dtype=torch.int32), zeros(size), zeros(size), zeros(size) - 1,
            zeros(size, dtype=torch.int32), zeros(size, width, dtype=torch.int32),
        )  # fmt: skip

    def first(self, size: int) -> DecodeInputs:
        """The first `size` lines, in the same memory."""
        return DecodeInputs(
            self.rows[:size], self.token_ids[:size], self.positions[:size],
            self.next_positions[:size], self.slots[:size], self.context_lens[:size],
            self.block_tables[:size],
        )  # fmt: skip


def gather_decode_inputs(
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    into: DecodeInputs,
) -> None:
    """Fill buffers of b lines.

    Args:
        lines: int64[b, 2], row and position of each line's token; a padded line has position
            -1 and any row.
        token_ids: int32[rows, positions].
        block_tables: int32[rows, w]; of a line's table, the blocks of its context are copied.
    """
    if uses_triton(lines):
        from nanofw.kernels.triton import decode_inputs as triton_decode_inputs

        triton_decode_inputs.gather_decode_inputs(lines, token_ids, block_tables, block_size, into)
        return
    rows, starts = lines.unbind(1)
    positions = starts.clamp_min(0)
    tables = block_tables[rows]
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    slots = blocks * block_size + positions % block_size
    into.rows.copy_(rows)
    into.token_ids.copy_(token_ids[rows, positions])
    into.positions.copy_(positions)
    into.next_positions.copy_(starts + 1)
    into.slots.copy_(torch.where(starts < 0, -1, slots))
    into.context_lens.copy_(starts + 1)
    into.block_tables.copy_(tables)
