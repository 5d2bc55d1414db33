"""A few forward passes over rows that grow, as an executor would run them."""

from __future__ import annotations

import torch

from tests.attention_backends.batches import make_rows
from tests.kernels.paged import device

# Passes of (tokens, rows): prompts, a chunk beside them, decodes beside the last chunk, decodes.
PASSES = [
    ([30, 5], [0, 1]),
    ([1, 1, 20], [0, 1, 2]),
    ([1, 1, 13], [0, 1, 2]),
    ([1, 1, 1], [0, 1, 2]),
]


def run_passes(backend, store, padded=0, stale=torch.nan):
    """Run `PASSES` over a pool of `stale` values.

    Yield each pass's output and what plain attention over all tokens so far gives.
    """
    config = backend.config
    rows, num_blocks = make_rows([40, 10, 40], config.block_size)
    kv = backend.allocate(num_blocks)[0]
    kv.fill_(stale)
    generator = torch.Generator().manual_seed(3)
    heads = config.num_heads + 2 * config.num_kv_heads
    history = [torch.empty(0, heads, config.head_dim, device=device()) for _ in range(3)]
    for num_tokens, members in PASSES:
        batch = rows.batch(num_tokens, members, padded if max(num_tokens) == 1 else 0)
        batch.attention = backend.prepare(batch)
        lines = len(batch.positions)
        qkv = torch.randn(lines, heads, config.head_dim, generator=generator)
        qkv = qkv.to(device(), config.dtype)
        out = store(backend, qkv, batch, kv)
        at = 0
        for row, n in zip(members, num_tokens, strict=True):
            history[row] = torch.cat([history[row], qkv[at : at + n].float()])
            yield out[at : at + n], history[row], n, row
            at += n


def plain(backend, qkv, batch, kv):
    c = backend.config
    q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
    return backend.forward(q, k, v, 0, kv, batch, c.head_dim**-0.5)
