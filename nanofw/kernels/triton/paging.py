"""Reading tiles of keys or values from pages.

Pages are [num_blocks, page, num_kv_heads, head_dim] tensors of any strides. The backend lays
them out with the heads before the page, so that a head's tile is one piece of memory; only then
can the copy engine fetch it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def load_blocks(table, start, offs_n, limit, PAGE: tl.constexpr, TILE: tl.constexpr):
    """The blocks of positions start + offs_n: one scalar when a page holds the whole tile.

    Loops read the blocks of the next tile before they need them and carry them over: a load
    whose address hangs on a load of the same iteration would halve the pipeline's depth.
    """
    if PAGE >= TILE:
        blocks = tl.load(table + start // PAGE)
    else:
        position = start + offs_n
        blocks = tl.load(table + position // PAGE, mask=position < limit, other=0)
    return blocks


@triton.jit
def load_tile(
    base,
    blocks,
    start,
    offs_n,
    offs_d,
    limit,
    stride_block,
    stride_slot,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    MASKED: tl.constexpr,
):
    """[TILE, HEAD_PAD] of positions start + offs_n; zero from `limit` on when MASKED.

    `start` is a multiple of TILE, `blocks` what `load_blocks` gave for it.
    """
    position = start + offs_n
    if PAGE >= TILE:
        lines = base + blocks.to(tl.int64) * stride_block + (start % PAGE) * stride_slot
        ptrs = lines + (offs_n * stride_slot)[:, None] + offs_d[None, :]
    else:
        lines = blocks.to(tl.int64) * stride_block + (position % PAGE) * stride_slot
        ptrs = base + lines[:, None] + offs_d[None, :]
    if MASKED:
        mask = (position < limit)[:, None]
        if HEAD_PAD != HEAD_DIM:
            mask = mask & (offs_d < HEAD_DIM)[None, :]
        tile = tl.load(ptrs, mask=mask, other=0.0)
    elif HEAD_PAD != HEAD_DIM:
        tile = tl.load(ptrs, mask=(offs_d < HEAD_DIM)[None, :], other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def load_descriptor_tile(
    descriptor, block, start, head, NUM_KV_HEADS: tl.constexpr, PAGE: tl.constexpr
):
    """The same tile by the copy engine; PAGE >= TILE. Nothing past the context is zeroed."""
    return descriptor.load([(block * NUM_KV_HEADS + head) * PAGE + start % PAGE, 0])


@triton.jit
def load_key_value_tiles(
    k_base,
    v_base,
    k_desc,
    v_desc,
    blocks,
    start,
    head,
    offs_n,
    offs_d,
    limit,
    stride_block,
    stride_slot,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    TMA: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Keys and values of a head at start + offs_n: two [TILE, HEAD_PAD] tiles.

    `k_base` and `v_base` point to the head's first slot. What lies past the context may be
    anything, NaN included: from `limit` on values are zero when MASKED; keys may be anything, for
    their scores are cut off.
    """
    if TMA:
        k = load_descriptor_tile(k_desc, blocks, start, head, NUM_KV_HEADS, PAGE)
        v = load_descriptor_tile(v_desc, blocks, start, head, NUM_KV_HEADS, PAGE)
        if MASKED:
            v = tl.where((start + offs_n < limit)[:, None], v, 0.0)
    else:
        k = load_tile(
            k_base,
            blocks,
            start,
            offs_n,
            offs_d,
            limit,
            stride_block,
            stride_slot,
            PAGE,
            TILE,
            HEAD_DIM,
            HEAD_PAD,
            MASKED,
        )
        v = load_tile(
            v_base,
            blocks,
            start,
            offs_n,
            offs_d,
            limit,
            stride_block,
            stride_slot,
            PAGE,
            TILE,
            HEAD_DIM,
            HEAD_PAD,
            MASKED,
        )
    return k, v


def page_descriptors(
    key_pages: torch.Tensor, value_pages: torch.Tensor, tile: int, head_pad: int
) -> tuple[Any, Any]:
    """Descriptors for the copy engine boxes of [tile, head_pad].

    Each head's page is one piece of memory: the transposed pages are contiguous.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    head_dim = key_pages.shape[-1]
    return tuple(
        TensorDescriptor.from_tensor(pages.transpose(1, 2).view(-1, head_dim), [tile, head_pad])
        for pages in (key_pages, value_pages)
    )
