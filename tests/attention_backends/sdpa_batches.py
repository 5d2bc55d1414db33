"""A paged cache filled at random, the batch over it, and plain attention to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch


@dataclass
class Rows:
    """Rows of a pass: how many tokens were there before, and how many come."""

    before: list[int]
    new: list[int]

    @property
    def context(self) -> list[int]:
        return [b + n for b, n in zip(self.before, self.new, strict=True)]


def config(
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    num_layers: int = 1,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    windows: tuple[int | None, ...] = (),
    device: str = "cpu",
) -> AttentionConfig:
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_layers=num_layers,
        block_size=block_size,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        max_model_len=4096,
        dtype=dtype,
        device=torch.device(device),
        sliding_windows=windows,
    )


def tables_for(
    rows: Rows, block_size: int, num_blocks: int, rng: np.random.Generator
) -> np.ndarray:
    """Distinct blocks at random places; entries past a row's length repeat a valid block."""
    counts = [-(-length // block_size) for length in rows.context]
    blocks = rng.permutation(num_blocks)[: sum(counts)].astype(np.int32)
    tables = np.zeros((len(counts), max(counts)), np.int32)
    start = 0
    for row, count in enumerate(counts):
        tables[row, :count] = blocks[start : start + count]
        start += count
    return tables


def make_batch(
    rows: Rows, tables: np.ndarray, block_size: int, *, device: str = "cpu", host: bool = True
) -> ForwardBatch:
    """The batch of one pass; `host` False leaves the tables to be read from the device."""
    positions = np.concatenate(
        [np.arange(b, b + n) for b, n in zip(rows.before, rows.new, strict=True)]
    )
    owners = np.repeat(np.arange(len(rows.new)), rows.new)
    slots = tables[owners, positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    num_decodes = 0
    while num_decodes < len(rows.new) and rows.new[num_decodes] == 1:
        num_decodes += 1
    to: dict[str, Any] = {"device": torch.device(device)}
    return ForwardBatch(
        token_ids=torch.zeros(len(positions), dtype=torch.int32, **to),
        positions=torch.tensor(positions, **to),
        slots=torch.tensor(slots, **to),
        block_tables=torch.tensor(tables, **to),
        query_starts=torch.tensor(np.cumsum([0, *rows.new]), dtype=torch.int32, **to),
        context_lens=torch.tensor(rows.context, dtype=torch.int32, **to),
        host_query_lens=np.array(rows.new, np.int32),
        host_context_lens=np.array(rows.context, np.int32),
        num_decodes=num_decodes,
        logits_indices=torch.tensor(np.cumsum(rows.new) - 1, **to),
        host_block_tables=tables if host else None,
    )


def plain_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    before: int,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """One row in float64: query [l, heads, d]; keys, values [context, kv_heads, d]."""
    group = query.shape[1] // keys.shape[1]
    q = query.double()
    k = keys.double().repeat_interleave(group, dim=1)
    v = values.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    positions = torch.arange(before, before + len(q), device=q.device)[:, None]
    places = torch.arange(len(k), device=q.device)[None, :]
    hidden = places > positions
    if window is not None:
        hidden |= places <= positions - window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
