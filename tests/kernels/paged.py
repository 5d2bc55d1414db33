"""Paged pools filled at random, and plain attention in float32 to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch


def device() -> torch.device:
    """The GPU, or the CPU for the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tolerance(dtype: torch.dtype) -> float:
    """Relative error that rounding to this type explains."""
    return {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """||actual - expected|| / ||expected||; NaN stays NaN and never passes a comparison."""
    difference = (actual.float() - expected.float()).norm()
    return (difference / expected.float().norm().clamp_min(1e-30)).item()


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of [n, heads, d] queries, the last n of m positions, in float32."""
    n, m, group = query.shape[0], key.shape[0], query.shape[1] // key.shape[1]
    q, k, v = query.float(), key.float(), value.float()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * scale
    at = torch.arange(n, device=q.device)[:, None] + m - n
    key_at = torch.arange(m, device=q.device)[None]
    hidden = key_at > at
    if window is not None:
        hidden |= key_at <= at - window
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@dataclass
class Paged:
    """Rows of random keys and values, scattered over pages; everything else is NaN.

    Attributes:
        kv: [2, num_blocks, page, kv heads, d], the heads before the page in memory.
        tables: int32[n, b]; entries past a row's length name a block of NaN.
        keys, values: each row's own, [length, kv heads, d].
    """

    kv: torch.Tensor
    tables: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @property
    def lengths(self) -> torch.Tensor:
        counts = [len(key) for key in self.keys]
        return torch.tensor(counts, dtype=torch.int32, device=self.kv.device)


def make_paged(
    lengths: list[int],
    page: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Paged:
    """A pool with one block that no row owns, in an order drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(blocks) + 1, generator=generator).to(torch.int32)
    kv = torch.full((2, len(order), num_kv_heads, page, head_dim), torch.nan, dtype=dtype)
    kv = kv.transpose(2, 3)
    tables = torch.full((len(lengths), max(1, *blocks)), int(order[-1]), dtype=torch.int32)
    rows = []
    for row, (first, length) in enumerate(
        zip(accumulate(blocks, initial=0), lengths, strict=False)
    ):
        tables[row, : blocks[row]] = order[first : first + blocks[row]]
        own = torch.randn(2, length, num_kv_heads, head_dim, generator=generator).to(dtype)
        at = torch.arange(length)
        kv[:, tables[row, at // page].long(), at % page] = own
        rows.append(own.to(device()))
    place = torch.empty_like(kv, device=device())
    return Paged(place.copy_(kv), tables.to(device()), [r[0] for r in rows], [r[1] for r in rows])
