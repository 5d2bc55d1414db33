"""A backend without a fault: one row after the other, over its gathered pages, in float32."""

from __future__ import annotations

from itertools import pairwise

import torch

from nanofw.plugins import AttentionBackend


class Plain(AttentionBackend):
    """The pool of a layer is [2, blocks, block size, KV heads, head size]."""

    def __init__(self, options, config) -> None:
        self.config = config

    def allocate(self, num_blocks) -> list[torch.Tensor]:
        c = self.config
        shape = (2, num_blocks, c.block_size, c.num_kv_heads, c.head_dim)
        return [torch.zeros(shape, dtype=c.dtype, device=c.device) for _ in range(c.num_layers)]

    def bytes_per_block(self) -> int:
        c = self.config
        return 2 * c.num_layers * c.block_size * c.num_kv_heads * c.head_dim * c.dtype.itemsize

    def copy_blocks(self, pool, copies) -> None:
        for kv in pool:
            kv[:, copies[:, 1]] = kv[:, copies[:, 0]]

    def forward(self, query, key, value, layer, kv, batch, scale) -> torch.Tensor:
        self.store(key, value, kv, batch)
        out = torch.zeros_like(query)
        starts = batch.query_starts.tolist()
        for row, (start, stop) in enumerate(pairwise(starts)):
            if stop > start:
                keys, values = self.context(kv, batch, row)
                out[start:stop] = self.attend(query[start:stop], keys, values, layer, scale)
        return out

    def store(self, key, value, kv, batch) -> None:
        real = batch.slots >= 0
        flat = kv.view(2, -1, *kv.shape[3:])
        flat[0, batch.slots[real]] = key[real]
        flat[1, batch.slots[real]] = value[real]

    def context(self, kv, batch, row) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [context, KV heads, head size] of a row."""
        count = int(batch.context_lens[row])
        blocks = batch.block_tables[row, : -(-count // self.config.block_size)].long()
        keys, values = kv[:, blocks].flatten(1, 2)[:, :count]
        return keys, values

    def attend(self, query, keys, values, layer, scale) -> torch.Tensor:
        """[n, heads, head size] of the last n positions of the context."""
        scores = torch.einsum("qhd,khd->hqk", query.float(), self.spread(keys).float())
        scores = self.bounded(scores * scale)
        scores.masked_fill_(~self.visible(len(query), len(keys), self.window(layer)), -torch.inf)
        weights = scores.softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, self.spread(values).float())
        return attended.to(query.dtype)

    def spread(self, heads) -> torch.Tensor:
        """Each KV head serves as many query heads beside each other."""
        return heads.repeat_interleave(self.config.num_heads // self.config.num_kv_heads, dim=1)

    def bounded(self, scores) -> torch.Tensor:
        cap = self.config.soft_cap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def window(self, layer) -> int | None:
        windows = self.config.sliding_windows
        return windows[layer] if windows else None

    def visible(self, num_queries, num_keys, window) -> torch.Tensor:
        positions = torch.arange(num_keys - num_queries, num_keys)[:, None]
        keys = torch.arange(num_keys)[None]
        seen = keys <= positions
        return seen if window is None else seen & (keys > positions - window)
