"""Which rows of a pass go to which attention kernel, decided on the device.

A recorded pass of any mix of rows runs the decode kernel and the prefill kernel; each gets the
tiles of its own rows, the other rows have none there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch


@triton.jit(do_not_specialize=["num_rows"])
def _mixed_tile_starts_kernel(
    query_starts_ptr,
    context_lens_ptr,
    decode_starts_ptr,
    prefill_starts_ptr,
    num_rows,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BATCH_PAD: tl.constexpr,
):
    offs = tl.arange(0, BATCH_PAD)
    mask = offs < num_rows
    start = tl.load(query_starts_ptr + offs, mask=mask, other=0)
    count = tl.load(query_starts_ptr + offs + 1, mask=mask, other=0) - start
    context = tl.load(context_lens_ptr + offs, mask=mask, other=0)
    # The decode kernel takes row i's query from line i.
    decodes = (count == 1) & (start == offs)
    tiles = tl.cdiv(context, TILE)
    if WINDOW > 0:
        tiles -= tl.maximum(context - WINDOW, 0) // TILE
    tiles = tl.where(decodes, tiles, 0)
    ends = tl.cumsum(tiles, axis=0)
    tl.store(decode_starts_ptr + offs, ends - tiles, mask=mask)
    tl.store(decode_starts_ptr + 1 + offs, ends, mask=offs == num_rows - 1)
    tiles = tl.where(decodes, 0, tl.cdiv(count, BLOCK_Q))
    ends = tl.cumsum(tiles, axis=0)
    tl.store(prefill_starts_ptr + offs, ends - tiles, mask=mask)
    tl.store(prefill_starts_ptr + 1 + offs, ends, mask=offs == num_rows - 1)


def mixed_tile_starts(
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    tile: int,
    tokens_per_tile: int,
    batch_pad: int,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `decode_tile_starts` and `prefill_tile_starts` give, each for its own rows.

    Rows with one query token, before all with more, are the decode kernel's; those with none
    have no tile.

    Args:
        query_starts: int32[n + 1].
        context_lens: int32[n].
        tile: keys in a tile of the decode kernel.
        tokens_per_tile: tokens in a query tile of the prefill kernel.
        batch_pad: a power of two, at least n; one kernel is compiled for each.
        window: keys that a query sees at most, itself included.

    Returns:
        int32[n + 1] for the decode kernel, and the same for the prefill kernel.
    """
    num_rows = context_lens.shape[0]
    decode_starts = query_starts.new_empty(num_rows + 1)
    prefill_starts = query_starts.new_empty(num_rows + 1)
    launch(
        _mixed_tile_starts_kernel, (1,),
        query_starts, context_lens, decode_starts, prefill_starts, num_rows,
        TILE=tile, WINDOW=window or 0, BLOCK_Q=tokens_per_tile, BATCH_PAD=batch_pad,
    )  # fmt: skip
    return decode_starts, prefill_starts
