"""Decode attention over paged KV: one query token a row, work split evenly over the device.

The keys of all rows are cut into tiles. A *unit* is one row's tiles for one KV head; units lie
one after the other, and each of a fixed number of programs takes an equal share of that line:

    tiles     |--row 0, head 0--|--row 0, head 1--|--row 1, head 0--|-- ...
    programs  |....0....|....1....|....2....|....3....|

A unit inside one share is finished there. A unit that crosses shares leaves a part per program
in scratch; the program that writes the last part of a unit (a counter tells) combines them, by the
log-sum-exp rule of flash decoding (Dao et al., 2023). The balance is then independent of how
ragged the batch is, the grid is the same for every batch, and a layer is one launch: all of it
can be captured in a CUDA graph, since lengths and shares are read on the device.

The query heads of one KV head form one tile, so keys and values are read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    LOG2_E,
    dot,
    launch_dependents,
    next_power_of_2,
    num_multiprocessors,
    pdl_options,
    soft_capped,
    wait_for_previous,
)
from nanofw.kernels.triton.paging import PagedAttention, load_blocks, load_key_value_tiles
from nanofw.kernels.triton.tuning import DecodeConfig

MIN_DOT_ROWS = 16


@triton.jit
def _combine(
    partial_ptr,
    max_ptr,
    sum_ptr,
    out_ptrs,
    out_mask,
    first,
    num_parts,
    starts_inside,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Weigh the parts of one unit, PARTS at a time, and write its output."""
    offs_p = tl.arange(0, PARTS)
    offs_g = tl.arange(0, GROUP_PAD)
    offs_d = tl.arange(0, HEAD_PAD)
    top = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    acc = tl.zeros((GROUP_PAD, HEAD_PAD), tl.float32)
    for begin in range(0, num_parts, PARTS):
        part = begin + offs_p
        # A program's slot 0 holds the unit that was under way when its share began, slot 1 the
        # one that its share ends in.
        slot = (first + part) * 2 + tl.where((part == 0) & starts_inside, 1, 0)
        line = slot[:, None] * GROUP + offs_g[None, :]
        valid = (part < num_parts)[:, None] & (offs_g < GROUP)[None, :]
        # Written by other programs of this launch: past the first-level cache.
        m = tl.load(max_ptr + line, mask=valid, other=float("-inf"), cache_modifier=".cg")
        s = tl.load(sum_ptr + line, mask=valid, other=0.0, cache_modifier=".cg")
        a = tl.load(
            partial_ptr + line[:, :, None] * HEAD_DIM + offs_d[None, None, :],
            mask=valid[:, :, None] & (offs_d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_top = tl.maximum(top, tl.max(m, axis=0))
        # Padded lines of the group have no part at all: keep -inf - -inf out of the exponent.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(m - base[None, :])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(s * weight, axis=0)
        acc = acc * keep[:, None] + tl.sum(a * weight[:, :, None], axis=0)
        top = new_top
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out_ptrs, out.to(out_ptrs.dtype.element_ty), mask=out_mask)


# Each width of a batch's tables would compile anew.
@triton.jit(do_not_specialize=["num_rows", "stride_table"])
def _decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_desc,
    v_desc,
    out_ptr,
    block_tables_ptr,
    context_lens_ptr,
    tile_starts_ptr,
    partial_ptr,
    max_ptr,
    sum_ptr,
    counters_ptr,
    scale_log2,
    num_rows,
    stride_q_row,
    stride_q_head,
    stride_o_row,
    stride_o_head,
    stride_block,
    stride_head,
    stride_slot,
    stride_table,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    ROWS_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BATCH_PAD: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    wait_for_previous(PDL)
    program = tl.program_id(0)
    offs_b = tl.arange(0, BATCH_PAD)
    row_ends = tl.load(tile_starts_ptr + 1 + offs_b, mask=offs_b < num_rows, other=2147483647)
    num_tiles = tl.load(tile_starts_ptr + num_rows) * NUM_KV_HEADS
    share = tl.maximum(tl.cdiv(num_tiles, tl.num_programs(0)), 1)
    begin = program * share
    end = tl.minimum(begin + share, num_tiles)
    offs_m = tl.arange(0, ROWS_M)
    offs_n = tl.arange(0, TILE)
    offs_d = tl.arange(0, HEAD_PAD)
    offs_g = tl.arange(0, GROUP_PAD)

    at = begin
    while at < end:
        row = tl.sum((row_ends <= at // NUM_KV_HEADS).to(tl.int32), axis=0)
        row_start = tl.load(tile_starts_ptr + row)
        tiles = tl.load(tile_starts_ptr + row + 1) - row_start
        head = (at - row_start * NUM_KV_HEADS) // tiles
        unit = row_start * NUM_KV_HEADS + head * tiles
        tile_begin = at - unit
        tile_end = tl.minimum(tiles, end - unit)
        context = tl.load(context_lens_ptr + row)
        lowest = 0
        if WINDOW > 0:
            lowest = tl.maximum(context - WINDOW, 0)
        base_tile = lowest // TILE

        wanted = (offs_m < GROUP)[:, None] & (offs_d < HEAD_DIM)[None, :]
        q_row = q_ptr + row.to(tl.int64) * stride_q_row + head * GROUP * stride_q_head
        q = tl.load(q_row + offs_m[:, None] * stride_q_head + offs_d[None, :], wanted, other=0.0)
        table = block_tables_ptr + row.to(tl.int64) * stride_table
        top = tl.full((ROWS_M,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS_M,), tl.float32)
        acc = tl.zeros((ROWS_M, HEAD_PAD), tl.float32)
        first_tile = tile_begin + base_tile
        last_tile = tile_end + base_tile - 1
        blocks = load_blocks(table, first_tile * TILE, offs_n, context, PAGE, TILE)
        for tile in range(first_tile, last_tile + 1):
            start = tile * TILE
            next_start = tl.minimum(tile + 1, last_tile) * TILE
            next_blocks = load_blocks(table, next_start, offs_n, context, PAGE, TILE)
            position = start + offs_n
            seen = position < context
            k, v = load_key_value_tiles(
                k_ptr + head * stride_head,
                v_ptr + head * stride_head,
                k_desc,
                v_desc,
                blocks,
                start,
                head,
                offs_n,
                offs_d,
                context,
                stride_block,
                stride_slot,
                NUM_KV_HEADS,
                HEAD_DIM,
                HEAD_PAD,
                PAGE,
                TILE,
                TMA,
                True,
            )
            scores = dot(q, tl.trans(k)) * scale_log2
            if SOFT_CAP > 0:
                scores = soft_capped(scores, SOFT_CAP)
            if WINDOW > 0:
                seen = seen & (position >= lowest)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, axis=1))
            weight = tl.exp2(scores - new_top[:, None])
            keep = tl.exp2(top - new_top)
            total = total * keep + tl.sum(weight, axis=1)
            acc = acc * keep[:, None] + dot(weight.to(v.dtype), v)
            top = new_top
            blocks = next_blocks

        out_row = out_ptr + row.to(tl.int64) * stride_o_row + head * GROUP * stride_o_head
        if tile_end - tile_begin == tiles:
            out = acc / total[:, None]
            tl.store(
                out_row + offs_m[:, None] * stride_o_head + offs_d[None, :],
                out.to(out_ptr.dtype.element_ty),
                mask=wanted,
            )
        else:
            slot = program * 2 + tl.where(at == begin, 0, 1)
            line = slot * GROUP + offs_m
            tl.store(partial_ptr + line[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=wanted)
            tl.store(max_ptr + line, top, mask=offs_m < GROUP)
            tl.store(sum_ptr + line, total, mask=offs_m < GROUP)
            # All threads' parts are written before the one atomic that announces them.
            tl.debug_barrier()
            first = unit // share
            num_parts = (unit + tiles - 1) // share - first + 1
            if tl.atomic_add(counters_ptr + first, 1, sem="acq_rel") == num_parts - 1:
                out_ptrs = out_row + offs_g[:, None] * stride_o_head + offs_d[None, :]
                _combine(
                    partial_ptr,
                    max_ptr,
                    sum_ptr,
                    out_ptrs,
                    (offs_g < GROUP)[:, None] & (offs_d < HEAD_DIM)[None, :],
                    first,
                    num_parts,
                    unit != first * share,
                    GROUP,
                    GROUP_PAD,
                    HEAD_DIM,
                    HEAD_PAD,
                    PARTS,
                )
                tl.store(counters_ptr + first, 0)
        at = unit + tile_end


@triton.jit(do_not_specialize=["num_rows"])
def _tile_starts_kernel(
    context_lens_ptr,
    tile_starts_ptr,
    num_rows,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    BATCH_PAD: tl.constexpr,
):
    offs = tl.arange(0, BATCH_PAD)
    context = tl.load(context_lens_ptr + offs, mask=offs < num_rows, other=0)
    tiles = tl.cdiv(context, TILE)
    if WINDOW > 0:
        tiles -= tl.maximum(context - WINDOW, 0) // TILE
    ends = tl.cumsum(tiles, axis=0)
    tl.store(tile_starts_ptr + offs, ends - tiles, mask=offs < num_rows)
    tl.store(tile_starts_ptr + 1 + offs, ends, mask=offs == num_rows - 1)


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Scratch of the decode kernel, shared by all layers of one stream.

    Attributes:
        batch_pad: a power of two, at least the rows of any batch; one kernel is compiled for it.
        partial, maxima, sums: parts of units, two slots a program.
        counters: how many parts of a unit are written; zero between launches.
    """

    num_programs: int
    batch_pad: int
    partial: torch.Tensor
    maxima: torch.Tensor
    sums: torch.Tensor
    counters: torch.Tensor


def decode_workspace(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_rows: int,
    config: DecodeConfig,
    device: torch.device,
) -> DecodeWorkspace:
    """Scratch for batches of up to `max_rows` rows."""
    programs = num_multiprocessors(device) * config.programs_per_multiprocessor
    lines = programs * 2 * (num_heads // num_kv_heads)
    return DecodeWorkspace(
        programs,
        next_power_of_2(max_rows),
        torch.empty(lines, head_dim, dtype=torch.float32, device=device),
        torch.empty(lines, dtype=torch.float32, device=device),
        torch.empty(lines, dtype=torch.float32, device=device),
        torch.zeros(programs, dtype=torch.int32, device=device),
    )


def decode_tile_starts(
    context_lens: torch.Tensor,
    tile: int,
    batch_pad: int,
    window: int | None = None,
) -> torch.Tensor:
    """First tile of each row in the line of all tiles of one KV head, and their number.

    Args:
        context_lens: int32[n], keys of each row; 0 for a padded row.
        tile: keys in a tile.
        batch_pad: as in `DecodeWorkspace`.
        window: keys that a query sees at most, itself included.

    Returns:
        int32[n + 1].
    """
    n = context_lens.shape[0]
    starts = context_lens.new_empty(n + 1)
    if n == 0:
        return starts.zero_()
    launch(
        _tile_starts_kernel, (1,), context_lens, starts, n,
        TILE=tile, WINDOW=window or 0, BATCH_PAD=batch_pad,
    )  # fmt: skip
    return starts


def _parts_at_once(config: DecodeConfig, elements: int) -> int:
    """Parts of a split row that are combined at once; `elements`: of one, a power of two."""
    return max(1, min(config.most_parts, config.combined // elements))


def decode_attention(
    attention: PagedAttention,
    tile_starts: torch.Tensor,
    workspace: DecodeWorkspace,
    config: DecodeConfig,
) -> None:
    """Attention of one query token a row over its pages. One launch, whatever the lengths.

    Args:
        attention: of n rows with a query token each. Lines of rows without context are left as
            they were.
        workspace: for this configuration, or one of more programs.
        tile_starts: `decode_tile_starts` of these lengths, this window and `config.tile`.
    """
    one, num_rows = attention, attention.query.shape[0]
    if num_rows == 0:
        return
    sizes = one.sizes(config)
    group_pad = next_power_of_2(one.group)
    k_desc, v_desc = one.descriptors(config)
    num_programs = num_multiprocessors(one.query.device) * config.programs_per_multiprocessor
    launch(
        _decode_kernel, (min(num_programs, workspace.num_programs),),
        one.query, one.key_pages, one.value_pages, k_desc, v_desc, one.out,
        one.block_tables, one.context_lens, tile_starts,
        workspace.partial, workspace.maxima, workspace.sums, workspace.counters,
        one.scale * LOG2_E, num_rows, *one.strides,
        GROUP_PAD=group_pad, ROWS_M=max(MIN_DOT_ROWS, group_pad), BATCH_PAD=workspace.batch_pad,
        PARTS=_parts_at_once(config, group_pad * sizes["HEAD_PAD"]), TMA=k_desc is not None,
        **sizes, **pdl_options(one.query),
        **({"maxnreg": config.max_registers} if config.max_registers else {}),
    )  # fmt: skip
