"""Reading tiles of keys or values from pages.

Pages are [num_blocks, page, num_kv_heads, head_dim] tensors of any strides. The backend lays
them out with the heads before the page, so that a head's tile is one piece of memory; only then
can the copy engine fetch it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.triton.common import next_power_of_2
from nanofw.kernels.triton.tuning import DecodeConfig, PrefillConfig


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
def _load(ptrs, seen, offs_d, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, MASKED: tl.constexpr):
    """What lies at [TILE, HEAD_PAD] pointers; zero where it is not `seen`, when MASKED."""
    if MASKED:
        mask = seen[:, None]
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

    `start` is a multiple of TILE, `blocks` what `load_blocks` gave for it. `k_base` and `v_base`
    point to the head's first slot. What lies past the context may be anything, NaN included: from
    `limit` on values are zero when MASKED; keys may be anything, for their scores are cut off.
    """
    position = start + offs_n
    if TMA:
        k = load_descriptor_tile(k_desc, blocks, start, head, NUM_KV_HEADS, PAGE)
        v = load_descriptor_tile(v_desc, blocks, start, head, NUM_KV_HEADS, PAGE)
        if MASKED:
            v = tl.where((position < limit)[:, None], v, 0.0)
    else:
        if PAGE >= TILE:
            first = blocks.to(tl.int64) * stride_block + (start % PAGE) * stride_slot
            offsets = (offs_n * stride_slot)[:, None] + offs_d[None, :]
        else:
            slots = blocks.to(tl.int64) * stride_block + (position % PAGE) * stride_slot
            first = slots[:, None]
            offsets = offs_d[None, :]
        seen = position < limit
        k = _load(k_base + first + offsets, seen, offs_d, HEAD_DIM, HEAD_PAD, MASKED)
        v = _load(v_base + first + offsets, seen, offs_d, HEAD_DIM, HEAD_PAD, MASKED)
    return k, v


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """One layer's attention over its pages: what both kernels take.

    Attributes:
        query: [t, num_heads, head_dim], last dimension contiguous.
        key_pages, value_pages: [num_blocks, page, num_kv_heads, head_dim], of any equal strides
            with the last dimension contiguous.
        block_tables: int32[n, b].
        context_lens: int32[n], keys of each row, those of this pass included.
        scale: of the scores.
        window: keys that a query sees at most, itself included; None: all.
        out: like `query`; lines of rows that a kernel does not look at are left as they were.
        soft_cap: bound of the scaled scores, see `AttentionConfig`; None: they have none.
    """

    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    scale: float
    window: int | None
    out: torch.Tensor
    soft_cap: float | None = None

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.query.shape[1] // self.key_pages.shape[2]

    @property
    def strides(self) -> tuple[int, ...]:
        """Of rows and heads of query and output; of blocks, heads and slots of pages; of tables."""
        query, out, pages = self.query.stride(), self.out.stride(), self.key_pages.stride()
        return *query[:2], *out[:2], pages[0], pages[2], pages[1], self.block_tables.stride(0)

    def sizes(self, config: DecodeConfig | PrefillConfig) -> dict[str, object]:
        """The constants that both kernels are compiled for."""
        _, page, num_kv_heads, head_dim = self.key_pages.shape
        return {
            "NUM_KV_HEADS": num_kv_heads, "GROUP": self.group, "HEAD_DIM": head_dim,
            "HEAD_PAD": next_power_of_2(head_dim), "PAGE": page, "TILE": config.tile,
            "WINDOW": self.window or 0, "SOFT_CAP": self.soft_cap or 0.0,
            "num_warps": config.num_warps, "num_stages": config.num_stages,
        }  # fmt: skip

    def descriptors(self, config: DecodeConfig | PrefillConfig) -> tuple[object, object]:
        """Of keys and values, for the copy engine to fetch boxes of [tile, head_dim]; or None each.

        Each head's page must be one piece of memory: then the transposed pages are contiguous.
        """
        _, page, _, head_dim = self.key_pages.shape
        if not (config.tma and page >= config.tile):
            return None, None
        heads_first = self.key_pages.transpose(1, 2), self.value_pages.transpose(1, 2)
        if not heads_first[0].is_contiguous():
            return None, None
        from triton.tools.tensor_descriptor import TensorDescriptor

        box = [config.tile, next_power_of_2(head_dim)]
        keys, values = (
            TensorDescriptor.from_tensor(pages.view(-1, head_dim), box) for pages in heads_first
        )
        return keys, values
