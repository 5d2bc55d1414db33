"""Drives an attention backend as an executor does, beside plain attention in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray, LongArray
from nanofw.contracts.attention_backend import (
    AttentionBackend,
    AttentionConfig,
    ForwardBatch,
    FusedAttentionBackend,
    FusedInputs,
)

TOLERANCES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest error that is accepted, relative to the largest value of the reference."""


def reference_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of the last n positions of a row, the definition written out.

    Args:
        query: [n, num_heads, head_dim].
        keys, values: [c, num_kv_heads, head_dim]; query i sits at position c - n + i.
        window: a query sees itself and the `window - 1` keys before it; None: all before it.
        soft_cap: bound of the scaled scores; None: they have none.

    Returns:
        float32[n, num_heads, head_dim].
    """
    group = query.shape[1] // keys.shape[1]
    key = keys.float().repeat_interleave(group, dim=1)
    value = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    ends = torch.arange(len(keys) - len(query), len(keys), device=keys.device)[:, None]
    positions = torch.arange(len(keys), device=keys.device)[None, :]
    seen = positions <= ends
    if window is not None:
        seen &= positions > ends - window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@dataclass(slots=True)
class _RowKV:
    """A row's blocks and, per layer, all keys and values that it has written."""

    table: list[int]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @property
    def length(self) -> int:
        return len(self.keys[0])


class AttentionBackendDriver:
    """A backend over a pool whose blocks are in random order.

    All blocks held NaN before, as an earlier owner may have left it; a row that reads it fails.
    """

    def __init__(
        self, backend: AttentionBackend, config: AttentionConfig, num_blocks: int, seed: int = 0
    ) -> None:
        self.backend = backend
        self.config = config
        self.num_blocks = num_blocks
        self.scale: float = config.head_dim**-0.5
        self.pool: list[object] = backend.allocate(num_blocks)
        assert len(self.pool) == config.num_layers, "allocate gives one entry per layer"
        self.rows: dict[int, _RowKV] = {}
        self._random = np.random.default_rng(seed)
        self._torch_random = torch.Generator().manual_seed(seed)
        self._free = self._random.permutation(num_blocks).tolist()
        self._spoil()

    def share(self, row: int, source: int, num_blocks: int) -> None:
        """Start a row with the first blocks of another, as a prefix hit does."""
        length = num_blocks * self.config.block_size
        old = self.rows[source]
        self.rows[row] = _RowKV(
            old.table[:num_blocks],
            [keys[:length] for keys in old.keys],
            [values[:length] for values in old.values],
        )

    def forward(self, num_tokens: Sequence[tuple[int, int]], num_padded: int = 0) -> None:
        """One pass of (row, tokens), single tokens first; every output is compared.

        Args:
            num_padded: rows of one padded token each, whose keys and values are NaN, after the
                rows with a single token: what the replay of a captured batch looks like.
        """
        batch = self._batch(num_tokens, num_padded)
        batch.attention = self.backend.prepare(batch)
        for layer in range(self.config.num_layers):
            query, key, value = self._inputs(num_tokens, num_padded)
            out = self.backend.forward(
                query, key, value, layer, self.pool[layer], batch, self.scale
            )
            _check_form(out, query)
            self._keep(num_tokens, layer, key, value)
            self._compare(num_tokens, layer, query, out)

    def forward_fused(self, num_tokens: Sequence[tuple[int, int]], *, norm: bool) -> None:
        """The same through the fused entry: norm, rotation and store done by the backend."""
        assert isinstance(self.backend, FusedAttentionBackend), "`fused` is claimed"
        config, dim = self.config, self.config.head_dim
        batch = self._batch(num_tokens, 0)
        batch.attention = self.backend.prepare(batch)
        weights = torch.rand(2, dim, generator=self._torch_random).to(config.device, config.dtype)
        cos_sin = self._cos_sin()
        for layer in range(config.num_layers):
            query, key, value = self._inputs(num_tokens, 0)
            inputs = FusedInputs(
                qkv=torch.cat((query, key, value), dim=1).flatten(1),
                query_norm=weights[0] if norm else None,
                key_norm=weights[1] if norm else None,
                norm_eps=1e-6,
                cos_sin=cos_sin,
            )
            out = self.backend.forward_fused(inputs, layer, self.pool[layer], batch, self.scale)
            turned = [
                _turned(x, weights[i] if norm else None, cos_sin[batch.positions])
                for i, x in enumerate((query, key))
            ]
            self._keep(num_tokens, layer, turned[1], value)
            self._compare(num_tokens, layer, turned[0], out.view_as(query))

    def forward_captured(self, num_tokens: Sequence[tuple[int, int]], num_padded: int) -> None:
        """One pass as a graph captures it: the host knows bounds alone, and padding follows.

        As many rows without tokens follow as there are padded tokens, whose queries, keys and
        values are NaN.
        """
        batch = self._captured(self._batch(num_tokens, 0), num_padded)
        batch.attention = self.backend.prepare(batch)
        total = len(batch.positions) - num_padded
        for layer in range(self.config.num_layers):
            inputs = self._inputs([*num_tokens, (-1, num_padded)], 0)
            for part in inputs:
                part[total:] = torch.nan
            out = self.backend.forward(*inputs, layer, self.pool[layer], batch, self.scale)
            query, key, value = (part[:total] for part in inputs)
            self._keep(num_tokens, layer, key, value)
            self._compare(num_tokens, layer, query, out[:total])

    def _captured(self, batch: ForwardBatch, num_padded: int) -> ForwardBatch:
        """The batch with padded tokens and rows, and bounds where the host's lengths were."""
        counts = batch.host_query_lens
        tokens, rows = len(batch.positions) + num_padded, len(counts) + num_padded
        leading = int((counts == 1).argmin()) if (counts != 1).any() else len(counts)

        def padded(tensor: torch.Tensor, value: int) -> torch.Tensor:
            padding = tensor.new_full((num_padded, *tensor.shape[1:]), value)
            return torch.cat((tensor, padding))

        longest = self.config.max_model_len
        return ForwardBatch(
            token_ids=padded(batch.token_ids, 0),
            positions=padded(batch.positions, 0),
            slots=padded(batch.slots, -1),
            block_tables=padded(batch.block_tables, 0),
            query_starts=padded(batch.query_starts, len(batch.positions)),
            context_lens=padded(batch.context_lens, 0),
            host_query_lens=np.full(rows, tokens, np.int32),
            host_context_lens=np.full(rows, longest, np.int32),
            num_decodes=0,
            logits_indices=batch.logits_indices,
            max_chunks=len(counts) - leading + 1,
        )

    def copy(self, row: int) -> None:
        """Move a row to other blocks by `copy_blocks`."""
        old = self.rows[row].table
        new = [self._free.pop() for _ in old]
        pairs = torch.tensor(list(zip(old, new, strict=True)), device=self.config.device)
        self.backend.copy_blocks(self.pool, pairs)
        self.rows[row].table = new

    def _spoil(self) -> None:
        """Write NaN into every slot, as one long row that fails."""
        config, size = self.config, self.config.block_size
        table, total = list(range(self.num_blocks)), self.num_blocks * size
        for start in range(0, total, config.max_num_batched_tokens):
            count = min(config.max_num_batched_tokens, total - start)
            batch = self._make_batch([(table, start, count)], 0)
            batch.attention = self.backend.prepare(batch)
            for layer, kv in enumerate(self.pool):
                query, key, value = self._inputs([(0, count)], 0)
                key.fill_(torch.nan)
                value.fill_(torch.nan)
                self.backend.forward(query, key, value, layer, kv, batch, self.scale)

    def _batch(self, num_tokens: Sequence[tuple[int, int]], num_padded: int) -> ForwardBatch:
        parts: list[tuple[list[int], int, int]] = []
        for row, count in num_tokens:
            if row not in self.rows:
                empty = torch.empty(
                    0, self.config.num_kv_heads, self.config.head_dim, device=self.config.device
                )
                layers = self.config.num_layers
                self.rows[row] = _RowKV([], [empty] * layers, [empty] * layers)
            state = self.rows[row]
            needed = -(-(state.length + count) // self.config.block_size)
            state.table += [self._free.pop() for _ in range(needed - len(state.table))]
            parts.append((state.table, state.length, count))
        return self._make_batch(parts, num_padded)

    def _make_batch(
        self, parts: Sequence[tuple[list[int], int, int]], num_padded: int
    ) -> ForwardBatch:
        """A batch of rows given as (table, tokens before, tokens), and padded rows."""
        size = self.config.block_size
        parts = [*parts, *[([0], -1, 1)] * num_padded]
        if num_padded:
            parts.sort(key=lambda part: part[2] != 1)  # padded ones behind the single tokens
        width = max(len(table) for table, _, _ in parts) + 1
        # Past a row's end: any valid block.
        tables = self._random.integers(0, self.num_blocks, (len(parts), width), dtype=np.int32)
        slots: list[LongArray] = []
        positions: list[LongArray] = []
        for i, (table, start, count) in enumerate(parts):
            tables[i, : len(table)] = table
            at = np.arange(max(start, 0), max(start, 0) + count)
            positions.append(at)
            real = np.array(table)[at // size] * size + at % size
            slots.append(real if start >= 0 else np.full(count, -1))
        counts = np.array([count for _, _, count in parts], np.int32)
        lengths = np.array([start + count for _, start, count in parts], np.int32)
        return self._on_device(
            np.concatenate(positions), np.concatenate(slots), tables, counts, lengths
        )

    def _on_device(
        self,
        positions: LongArray,
        slots: LongArray,
        tables: IntArray,
        counts: IntArray,
        lengths: IntArray,
    ) -> ForwardBatch:
        def device(values: IntArray | LongArray, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.config.device)

        return ForwardBatch(
            token_ids=device(np.zeros_like(positions), torch.int64),
            positions=device(positions, torch.int64),
            slots=device(slots, torch.int64),
            block_tables=device(tables, torch.int32),
            query_starts=device(np.concatenate(([0], counts.cumsum())), torch.int32),
            context_lens=device(lengths, torch.int32),
            host_query_lens=counts,
            host_context_lens=lengths,
            num_decodes=int((counts == 1).sum()),
            logits_indices=device(counts.cumsum() - 1, torch.int64),
        )

    def _inputs(
        self, num_tokens: Sequence[tuple[int, int]], num_padded: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config
        total = sum(count for _, count in num_tokens) + num_padded
        heads = config.num_heads + 2 * config.num_kv_heads
        qkv = torch.randn(total, heads, config.head_dim, generator=self._torch_random)
        qkv = qkv.to(config.device, config.dtype)
        if num_padded:
            first = sum(1 for _, count in num_tokens if count == 1)
            qkv[first : first + num_padded] = torch.nan
        query, key, value = torch.split(
            qkv, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1
        )
        return query, key, value

    def _spans(self, num_tokens: Sequence[tuple[int, int]], total: int) -> list[tuple[int, slice]]:
        """Each row's tokens in the flat layout; padded tokens follow the single ones."""
        num_padded = total - sum(count for _, count in num_tokens)
        spans: list[tuple[int, slice]] = []
        at = 0
        for row, count in num_tokens:
            if count != 1 and num_padded:
                at, num_padded = at + num_padded, 0
            spans.append((row, slice(at, at + count)))
            at += count
        return spans

    def _keep(
        self,
        num_tokens: Sequence[tuple[int, int]],
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        for row, span in self._spans(num_tokens, len(key)):
            state = self.rows[row]
            state.keys[layer] = torch.cat((state.keys[layer], key[span]))
            state.values[layer] = torch.cat((state.values[layer], value[span]))

    def _compare(
        self,
        num_tokens: Sequence[tuple[int, int]],
        layer: int,
        query: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        windows = self.config.sliding_windows
        for row, span in self._spans(num_tokens, len(query)):
            state = self.rows[row]
            expected = reference_attention(
                query[span],
                state.keys[layer],
                state.values[layer],
                self.scale,
                windows[layer] if windows else None,
                self.config.soft_cap,
            )
            error = (out[span].float() - expected).abs().max() / expected.abs().max()
            allowed = TOLERANCES[self.config.dtype]
            assert error <= allowed, (  # not `error > allowed`: NaN must fail
                f"row {row}, layer {layer}: {span.stop - span.start} queries over "
                f"{state.length} keys are off by {float(error):.2g} of the largest value "
                f"({allowed:.0e} is allowed) with {self.config}"
            )

    def _cos_sin(self) -> torch.Tensor:
        """float32[max_model_len, head_dim], cosines then sines of the default rotation."""
        dim = self.config.head_dim
        frequencies = 1e4 ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.arange(self.config.max_model_len)[:, None] * frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=1).to(self.config.device)


def _check_form(out: object, query: torch.Tensor) -> None:
    assert isinstance(out, torch.Tensor), f"the output is {type(out).__name__}, not a tensor"
    found, expected = (out.dtype, tuple(out.shape)), (query.dtype, tuple(query.shape))
    assert found == expected, f"the output is {found} for queries of {expected}"


def _turned(x: torch.Tensor, weight: torch.Tensor | None, cos_sin: torch.Tensor) -> torch.Tensor:
    """RMS norm over the head's dimension, then rotation of its halves, in float32."""
    turned = x.float()
    if weight is not None:
        turned = torch.nn.functional.rms_norm(turned, weight.shape, weight.float(), 1e-6)
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    left, right = turned.chunk(2, dim=-1)
    rotated = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
    return rotated.to(x.dtype)
