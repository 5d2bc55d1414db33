"""Attention of a row that decodes alone, where its blocks are neighbours in the pool.

One request on a CPU spends more time on calling operators than in them. A single row needs no
grouping by owner, so this takes eight where `sdpa_decode.py` takes twenty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.attention_backends.sdpa_decode import LayerPool, key_mask
from nanofw.contracts.arrays import IntArray


@dataclass(slots=True)
class RunPart:
    """The row with one query token of a pass that has no other such row.

    Attributes:
        token: the flat position of its query.
        first, stop: the blocks that it reads, [first, stop), in the order of the pool.
        mask: float32[b * num_kv_heads, 1, block_size], 0 where a key is visible, else very
            negative.
    """

    token: int
    first: int
    stop: int
    mask: torch.Tensor


def prepare_run(
    token: int,
    context_len: int,
    table: IntArray,
    block_size: int,
    num_kv_heads: int,
    window: int | None,
) -> RunPart | None:
    """The row's part; None: its blocks are not all neighbours.

    Args:
        context_len: keys of the row, its own included.
        table: int32[b], its blocks.
        window: how many keys a query sees, its own included; None: all.
    """
    first_key = 0 if window is None else max(0, context_len - window)
    first_block, last_block = first_key // block_size, (context_len - 1) // block_size
    blocks = table[first_block : last_block + 1]
    first = int(blocks.min())
    stop = int(blocks.max()) + 1
    if stop - first != len(blocks):
        return None
    places = np.empty(len(blocks), np.int64)
    places[blocks - first] = np.arange(first_block, last_block + 1)
    positions = np.repeat(places * block_size, num_kv_heads)
    mask = key_mask(np.array([first_key]), np.array([context_len]), positions, block_size)
    return RunPart(token, first, stop, torch.from_numpy(mask).view(-1, 1, block_size))


def attend_run(
    query: torch.Tensor, kv: LayerPool, part: RunPart, scale: float, out: torch.Tensor
) -> None:
    """Write the output of the part's row into `out`; query and out are float32[t, num_heads, d]."""
    heads, size, dim = kv.keys.shape[1:]
    count, group = part.stop - part.first, query.shape[1] // heads
    lines = count * heads
    keys = kv.keys[part.first : part.stop].view(lines, size, dim)
    values = kv.values[part.first : part.stop].view(lines, dim, size)
    queries = query[part.token].view(1, heads, group, dim).expand(count, -1, -1, -1)
    scores = torch.baddbmm(
        part.mask, queries.reshape(lines, group, dim), keys.transpose(1, 2), alpha=scale
    )
    scores = scores.view(count, heads * group, size).transpose(0, 1)
    weights = scores.reshape(-1, count * size).softmax(-1).view(-1, count, size).transpose(0, 1)
    partial = torch.bmm(weights.reshape(lines, group, size), values.transpose(1, 2))
    torch.sum(partial.view(count, -1, dim), 0, out=out[part.token])
