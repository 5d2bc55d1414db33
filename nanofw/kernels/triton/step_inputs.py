"""`gather_step_inputs` as one kernel: a program for each token, then one for each line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import next_power_of_2

if TYPE_CHECKING:
    from nanofw.kernels.step_inputs import StepInputs

BLOCK = 256


@triton.jit(do_not_specialize=["num_tokens", "num_lines", "spare_row"])
def _step_inputs_kernel(
    lines_ptr,
    all_tokens_ptr,
    all_tables_ptr,
    token_ids_ptr,
    positions_ptr,
    slots_ptr,
    query_starts_ptr,
    context_lens_ptr,
    tables_ptr,
    rows_ptr,
    next_positions_ptr,
    logits_indices_ptr,
    num_tokens,
    num_lines,
    spare_row,
    stride_all_tokens,
    stride_all_tables,
    stride_tables,
    PAGE: tl.constexpr,
    LINES_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    if program < num_tokens:
        offs = tl.arange(0, LINES_PAD)
        # What is not a line ends where no token is.
        ends = tl.load(lines_ptr + 4 * offs + 2, mask=offs < num_lines, other=1 << 40)
        line = tl.sum((ends <= program).to(tl.int32), axis=0).to(tl.int64)
        is_real = line < num_lines
        line = tl.minimum(line, num_lines - 1)
        before = tl.load(lines_ptr + 4 * line - 2, mask=line > 0, other=0)
        start = tl.load(lines_ptr + 4 * line + 1)
        row = tl.load(lines_ptr + 4 * line)
        position = tl.where(is_real, start + program - before, 0)
        block = tl.load(all_tables_ptr + row * stride_all_tables + position // PAGE).to(tl.int64)
        slot = tl.where(is_real, block * PAGE + position % PAGE, -1)
        token = tl.load(all_tokens_ptr + row * stride_all_tokens + position)
        tl.store(token_ids_ptr + program, token)
        tl.store(positions_ptr + program, position)
        tl.store(slots_ptr + program, slot)
    else:
        line = program - num_tokens
        before = tl.load(lines_ptr + 4 * line - 2, mask=line > 0, other=0)
        row = tl.load(lines_ptr + 4 * line)
        start = tl.load(lines_ptr + 4 * line + 1)
        end = tl.load(lines_ptr + 4 * line + 2)
        context = start + end - before
        if line == 0:
            tl.store(query_starts_ptr, 0)
        tl.store(query_starts_ptr + line + 1, end.to(tl.int32))
        tl.store(context_lens_ptr + line, context.to(tl.int32))

        source = tl.load(lines_ptr + 4 * line + 3)
        samples = source >= 0
        source = tl.maximum(source, 0)
        source_before = tl.load(lines_ptr + 4 * source - 2, mask=source > 0, other=0)
        source_start = tl.load(lines_ptr + 4 * source + 1)
        source_end = tl.load(lines_ptr + 4 * source + 2)
        source_row = tl.load(lines_ptr + 4 * source)
        source_context = source_start + source_end - source_before
        tl.store(rows_ptr + line, tl.where(samples, source_row, spare_row))
        tl.store(next_positions_ptr + line, tl.where(samples, source_context, 0))
        tl.store(logits_indices_ptr + line, tl.where(samples, source_end - 1, 0))

        table = all_tables_ptr + row * stride_all_tables
        num_blocks = ((context + PAGE - 1) // PAGE).to(tl.int32)
        offs_b = tl.arange(0, BLOCK)
        for begin in range(0, num_blocks, BLOCK):
            mask = begin + offs_b < num_blocks
            blocks = tl.load(table + begin + offs_b, mask=mask)
            tl.store(tables_ptr + line * stride_tables + begin + offs_b, blocks, mask=mask)


def gather_step_inputs(
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    into: StepInputs,
) -> None:
    """See `step_inputs.gather_step_inputs`."""
    num_tokens, num_lines = into.token_ids.shape[0], lines.shape[0]
    spare_row = token_ids.shape[0] - 1
    launch(
        _step_inputs_kernel, (num_tokens + num_lines,),
        lines, token_ids, block_tables,
        into.token_ids, into.positions, into.slots, into.query_starts, into.context_lens,
        into.block_tables, into.rows, into.next_positions, into.logits_indices,
        num_tokens, num_lines, spare_row,
        token_ids.stride(0), block_tables.stride(0), into.block_tables.stride(0),
        PAGE=block_size, LINES_PAD=next_power_of_2(spare_row), BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
