"""Prefill attention over paged KV: several query tokens a row, after a prefix that is cached.

Queries of all rows lie one after the other; each row is cut into query tiles, and a query tile
holds `BLOCK_Q` tokens times the query heads of one KV head (so keys and values are read once
for the whole group). A program finds its row on the device, so the grid depends on counts
alone. Keys come from the pages only: this pass's own were stored before.

    keys      0 ........... prefix ........ | this pass's tokens |
    loop 1    |--- tiles that every line of the query tile sees ---|
    loop 2                                                         |--- tiles on the diagonal ---|

The inner loop is online softmax (FlashAttention-2; Dao, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import LOG2_E, dot, soft_capped
from nanofw.kernels.triton.paging import PagedAttention, load_blocks, load_key_value_tiles
from nanofw.kernels.triton.tuning import PrefillConfig


@triton.jit
def _attend(
    q,
    acc,
    total,
    top,
    k_base,
    v_base,
    k_desc,
    v_desc,
    blocks,
    start,
    query_position,
    context,
    head,
    scale_log2,
    stride_block,
    stride_slot,
    offs_n,
    offs_d,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TMA: tl.constexpr,
    DIAGONAL: tl.constexpr,
):
    """One tile of keys: returns acc, total, top."""
    position = start + offs_n
    k, v = load_key_value_tiles(
        k_base,
        v_base,
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
        DIAGONAL,
    )
    scores = dot(q, tl.trans(k)) * scale_log2
    if SOFT_CAP > 0:
        scores = soft_capped(scores, SOFT_CAP)
    if DIAGONAL:
        scores = tl.where(position[None, :] <= query_position[:, None], scores, float("-inf"))
    if WINDOW > 0:
        near = position[None, :] > query_position[:, None] - WINDOW
        scores = tl.where(near, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    base = new_top
    if WINDOW > 0:
        # A line may see nothing of a tile that its neighbours need.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weight = tl.exp2(scores - base[:, None])
    keep = tl.exp2(top - base)
    total = total * keep + tl.sum(weight, axis=1)
    acc = acc * keep[:, None] + dot(weight.to(v.dtype), v)
    return acc, total, new_top


@triton.jit(do_not_specialize=["num_rows", "first_row", "stride_table"])
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_desc,
    v_desc,
    out_ptr,
    block_tables_ptr,
    query_starts_ptr,
    context_lens_ptr,
    tile_starts_ptr,
    scale_log2,
    first_row,
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
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BATCH_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TMA: tl.constexpr,
):
    offs_b = tl.arange(0, BATCH_PAD)
    row_ends = tl.load(tile_starts_ptr + 1 + offs_b, mask=offs_b < num_rows, other=2147483647)
    # A grid for the largest batch of its size has programs without a tile.
    q_tile = tl.program_id(0)
    if q_tile >= tl.load(tile_starts_ptr + num_rows):
        return
    head = tl.program_id(1)
    local = tl.sum((row_ends <= q_tile).to(tl.int32), axis=0)
    row = local + first_row
    row_tiles = tl.load(tile_starts_ptr + local + 1) - tl.load(tile_starts_ptr + local)
    # The last query tile of a row sees most keys: it starts first.
    q_tile = row_tiles - 1 - (q_tile - tl.load(tile_starts_ptr + local))
    query_start = tl.load(query_starts_ptr + row)
    num_queries = tl.load(query_starts_ptr + row + 1) - query_start
    context = tl.load(context_lens_ptr + row)

    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, TILE)
    offs_d = tl.arange(0, HEAD_PAD)
    token = q_tile * BLOCK_Q + offs_m // GROUP
    wanted = (offs_m < BLOCK_Q * GROUP) & (token < num_queries)
    mask = wanted[:, None] & (offs_d < HEAD_DIM)[None, :]
    query_head = head * GROUP + offs_m % GROUP
    line = (query_start + token).to(tl.int64)
    q_ptrs = q_ptr + (line * stride_q_row + query_head * stride_q_head)[:, None] + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask, other=0.0)
    first_position = context - num_queries + q_tile * BLOCK_Q
    # Lines past the end see what the last token sees, so that none is empty.
    query_position = tl.minimum(first_position + offs_m // GROUP, context - 1)

    acc = tl.zeros((BLOCK_M, HEAD_PAD), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    table = block_tables_ptr + row.to(tl.int64) * stride_table
    k_base = k_ptr + head * stride_head
    v_base = v_ptr + head * stride_head
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // TILE
    full = (first_position + 1) // TILE
    end = tl.cdiv(tl.minimum(first_position + BLOCK_Q, context), TILE)
    blocks = load_blocks(table, begin * TILE, offs_n, context, PAGE, TILE)
    for DIAGONAL in tl.static_range(2):
        first_tile = begin
        last_tile = full
        if DIAGONAL:
            first_tile = tl.maximum(begin, full)
            last_tile = end
        for tile in range(first_tile, last_tile):
            next_start = tl.minimum(tile + 1, end - 1) * TILE
            next_blocks = load_blocks(table, next_start, offs_n, context, PAGE, TILE)
            acc, total, top = _attend(
                q,
                acc,
                total,
                top,
                k_base,
                v_base,
                k_desc,
                v_desc,
                blocks,
                tile * TILE,
                query_position,
                context,
                head,
                scale_log2,
                stride_block,
                stride_slot,
                offs_n,
                offs_d,
                NUM_KV_HEADS,
                HEAD_DIM,
                HEAD_PAD,
                PAGE,
                TILE,
                WINDOW,
                SOFT_CAP,
                TMA,
                DIAGONAL,
            )
            blocks = next_blocks

    out_ptrs = out_ptr + (line * stride_o_row + query_head * stride_o_head)[:, None]
    out = acc / total[:, None]
    tl.store(out_ptrs + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "first_row"])
def _query_tiles_kernel(
    query_starts_ptr,
    tile_starts_ptr,
    first_row,
    num_rows,
    BLOCK_Q: tl.constexpr,
    BATCH_PAD: tl.constexpr,
):
    offs = tl.arange(0, BATCH_PAD)
    mask = offs < num_rows
    start = tl.load(query_starts_ptr + first_row + offs, mask=mask, other=0)
    end = tl.load(query_starts_ptr + first_row + offs + 1, mask=mask, other=0)
    tiles = tl.cdiv(end - start, BLOCK_Q)
    ends = tl.cumsum(tiles, axis=0)
    tl.store(tile_starts_ptr + offs, ends - tiles, mask=mask)
    tl.store(tile_starts_ptr + 1 + offs, ends, mask=offs == num_rows - 1)


def query_tokens_per_tile(config: PrefillConfig, group: int) -> int:
    """Tokens of one query tile."""
    return config.rows // group


def max_query_tiles(num_tokens: int, num_rows: int, tokens_per_tile: int) -> int:
    """Query tiles that `num_tokens` over `num_rows` rows can make at most."""
    return min(num_tokens, num_tokens // tokens_per_tile + num_rows)


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """How the rows of a batch from `first_row` on are cut into query tiles.

    Attributes:
        query_starts: int32[n + 1] of the whole batch.
        starts: int32[rows + 1], first query tile of each of these rows, and their number.
        num_tiles: at least as many as there are.
        batch_pad: a power of two, at least the number of rows; one kernel is compiled for each.
    """

    query_starts: torch.Tensor
    starts: torch.Tensor
    num_tiles: int
    first_row: int
    batch_pad: int


def prefill_tile_starts(
    query_starts: torch.Tensor, first_row: int, num_rows: int, tokens_per_tile: int, batch_pad: int
) -> torch.Tensor:
    """First query tile of each of `num_rows` rows from `first_row` on, and their number.

    Args:
        query_starts: int32[n + 1] of the whole batch.
        batch_pad: a power of two, at least `num_rows`; one kernel is compiled for each.

    Returns:
        int32[num_rows + 1].
    """
    starts = query_starts.new_empty(num_rows + 1)
    launch(
        _query_tiles_kernel, (1,), query_starts, starts, first_row, num_rows,
        BLOCK_Q=tokens_per_tile, BATCH_PAD=batch_pad,
    )  # fmt: skip
    return starts


def prefill_attention(
    attention: PagedAttention, tiles: PrefillTiles, config: PrefillConfig
) -> None:
    """Causal attention of the rows that have tiles over their pages.

    Args:
        attention: of the whole batch.
    """
    one, num_rows = attention, tiles.starts.shape[0] - 1
    k_desc, v_desc = one.descriptors(config)
    launch(
        _prefill_kernel, (tiles.num_tiles, one.key_pages.shape[2]),
        one.query, one.key_pages, one.value_pages, k_desc, v_desc, one.out,
        one.block_tables, tiles.query_starts, one.context_lens, tiles.starts,
        one.scale * LOG2_E, tiles.first_row, num_rows, *one.strides,
        BLOCK_M=config.rows, BLOCK_Q=query_tokens_per_tile(config, one.group),
        BATCH_PAD=tiles.batch_pad, TMA=k_desc is not None, **one.sizes(config),
    )  # fmt: skip
