"""`gather_decode_inputs` as one kernel, one line a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch

if TYPE_CHECKING:
    from nanofw.kernels.decode_inputs import DecodeInputs

BLOCK = 256


@triton.jit
def _gather_kernel(
    lines_ptr,
    all_tokens_ptr,
    all_tables_ptr,
    rows_ptr,
    token_ids_ptr,
    positions_ptr,
    next_positions_ptr,
    slots_ptr,
    context_lens_ptr,
    tables_ptr,
    stride_all_tokens,
    stride_all_tables,
    stride_tables,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(lines_ptr + 2 * line)
    start = tl.load(lines_ptr + 2 * line + 1)
    position = tl.maximum(start, 0)
    table = all_tables_ptr + row * stride_all_tables
    block = tl.load(table + position // PAGE).to(tl.int64)
    slot = tl.where(start < 0, -1, block * PAGE + position % PAGE)
    tl.store(rows_ptr + line, row)
    tl.store(token_ids_ptr + line, tl.load(all_tokens_ptr + row * stride_all_tokens + position))
    tl.store(positions_ptr + line, position)
    tl.store(next_positions_ptr + line, start + 1)
    tl.store(slots_ptr + line, slot)
    tl.store(context_lens_ptr + line, (start + 1).to(tl.int32))
    num_blocks = (position // PAGE + 1).to(tl.int32)
    offs = tl.arange(0, BLOCK)
    for begin in range(0, num_blocks, BLOCK):
        mask = begin + offs < num_blocks
        blocks = tl.load(table + begin + offs, mask=mask)
        tl.store(tables_ptr + line * stride_tables + begin + offs, blocks, mask=mask)


def gather_decode_inputs(
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    into: DecodeInputs,
) -> None:
    """See `decode_inputs.gather_decode_inputs`."""
    launch(
        _gather_kernel, (lines.shape[0],),
        lines, token_ids, block_tables,
        into.rows, into.token_ids, into.positions, into.next_positions, into.slots,
        into.context_lens, into.block_tables,
        token_ids.stride(0), block_tables.stride(0), into.block_tables.stride(0),
        PAGE=block_size, BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
