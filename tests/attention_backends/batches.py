"""Forward batches over a pool, made the way an executor makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch
from tests.kernels.paged import device


def make_config(**changes) -> AttentionConfig:
    values = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "num_layers": 1,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": 512,
        "dtype": torch.float32,
        "device": device(),
    }
    return AttentionConfig(**{**values, **changes})


@dataclass
class Rows:
    """Rows that grow pass by pass: their block tables and how much each has computed."""

    tables: np.ndarray
    computed: list[int]
    block_size: int

    def batch(self, num_tokens: list[int], rows: list[int], padded: int = 0) -> ForwardBatch:
        """One pass of `num_tokens[i]` tokens of `rows[i]`, single tokens first, then padding."""
        starts = [self.computed[row] for row in rows]
        positions = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(starts, num_tokens, strict=True)]
            + [np.zeros(padded, np.int64)]
        )
        owner = np.repeat(np.array(rows), num_tokens)
        slots = np.full(len(positions), -1)
        real = positions[: len(owner)]
        slots[: len(owner)] = (
            self.tables[owner, real // self.block_size] * self.block_size + real % self.block_size
        )
        for row, n in zip(rows, num_tokens, strict=True):
            self.computed[row] += n
        query_lens = np.array([*num_tokens, *[1] * padded], np.int32)
        context = np.array([self.computed[r] for r in rows] + [0] * padded, np.int32)
        tables = np.concatenate(
            [self.tables[rows], np.zeros((padded, self.tables.shape[1]), self.tables.dtype)]
        )
        place = device()

        def on_device(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(place, dtype)

        decodes = next((i for i, n in enumerate(query_lens) if n > 1), len(query_lens))
        return ForwardBatch(
            token_ids=on_device(np.zeros(len(positions)), torch.int64),
            positions=on_device(positions, torch.int64),
            slots=on_device(slots, torch.int64),
            block_tables=on_device(tables, torch.int32),
            query_starts=on_device(np.concatenate([[0], np.cumsum(query_lens)]), torch.int32),
            context_lens=on_device(context, torch.int32),
            host_query_lens=query_lens,
            host_context_lens=context,
            num_decodes=decodes,
            logits_indices=on_device(np.cumsum(query_lens) - 1, torch.int64),
        )


def make_rows(capacities: list[int], block_size: int, seed: int = 0) -> tuple[Rows, int]:
    """Rows with room for this many tokens each, and the blocks of a pool that holds them."""
    blocks = [-(-c // block_size) for c in capacities]
    order = np.random.default_rng(seed).permutation(sum(blocks) + 1)[:-1]
    spare = (set(range(sum(blocks) + 1)) - set(order.tolist())).pop()
    tables = np.full((len(capacities), max(blocks)), spare, np.int64)
    at = 0
    for row, count in enumerate(blocks):
        tables[row, :count] = order[at : at + count]
        at += count
    return Rows(tables, [0] * len(capacities), block_size), sum(blocks) + 1
