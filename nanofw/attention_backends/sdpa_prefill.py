"""Attention of rows with several query tokens: a prompt, or a chunk behind a cached prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from nanofw.attention_backends.sdpa_decode import LayerPool, capped
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.kernels.transfer import to_device

_MAX_MASK = 1 << 22  # elements of a mask; more queries are handled in turns


@dataclass(slots=True)
class PrefillRow:
    """One row of a pass.

    Attributes:
        start: flat position of its first query token.
        num_tokens: query tokens.
        context_len: keys, those of this pass included.
        blocks: int64[b], its blocks; None when no key comes before this pass.
    """

    start: int
    num_tokens: int
    context_len: int
    blocks: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """What a layer attends with, of all rows of a pass.

    Attributes:
        query, out: [t, num_heads, d].
        key, value: [t, num_kv_heads, d], of this pass.
        kv: pool of the layer.
        scale: of the scores.
        soft_cap: their bound; None: they have none.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    kv: LayerPool
    scale: float
    out: torch.Tensor
    soft_cap: float | None = None


def prepare_prefill(
    batch: ForwardBatch,
    rows: np.ndarray,
    tables: IntArray,
    block_size: int,
    device: torch.device,
) -> list[PrefillRow]:
    """The given rows of a batch."""
    starts = np.cumsum(batch.host_query_lens) - batch.host_query_lens
    result: list[PrefillRow] = []
    for row in rows:
        num_tokens, context = int(batch.host_query_lens[row]), int(batch.host_context_lens[row])
        blocks = None
        if context > num_tokens:
            used = tables[row, : -(-context // block_size)].astype(np.int64)
            blocks = to_device(used, device)
        result.append(PrefillRow(int(starts[row]), num_tokens, context, blocks))
    return result


def attend_prefill(inputs: PrefillInputs, row: PrefillRow, window: int | None) -> None:
    """Write the row's outputs.

    Args:
        window: how many keys a query sees, its own included; None: all.
    """
    tokens = slice(row.start, row.start + row.num_tokens)
    context_keys, context_values = _context(inputs, row)
    heads, _, dim = context_keys.shape
    group = inputs.query.shape[1] // heads
    queries = inputs.query[tokens].view(row.num_tokens, heads, group, dim).permute(1, 2, 0, 3)
    results = inputs.out[tokens].view(row.num_tokens, heads, group, dim).permute(1, 2, 0, 3)
    # Heads of a group share keys: expanded with stride zero, nothing is repeated in memory.
    context_keys = context_keys.unsqueeze(1).expand(-1, group, -1, -1)
    context_values = context_values.unsqueeze(1).expand(-1, group, -1, -1)
    sees_all = row.blocks is None and (window is None or window >= row.num_tokens)
    if sees_all and inputs.soft_cap is None:
        results.copy_(
            scaled_dot_product_attention(
                queries, context_keys, context_values, is_causal=True, scale=inputs.scale
            )
        )
        return
    if _is_kernel_wrong(queries):
        context_keys, context_values = context_keys.contiguous(), context_values.contiguous()
    before = row.context_len - row.num_tokens
    copies = 1 if inputs.soft_cap is None else heads * group  # a fused kernel keeps no scores
    step = max(1, _MAX_MASK // (row.context_len * copies))
    for first in range(0, row.num_tokens, step):
        last = min(row.num_tokens, first + step)
        visible = _visible(before + first, before + last, row.context_len, window, queries.device)
        results[:, :, first:last] = _attend(
            queries[:, :, first:last], context_keys, context_values, visible, inputs
        )


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    inputs: PrefillInputs,
) -> torch.Tensor:
    """Attention of [kv_heads, group, n, d] queries to what is visible."""
    if inputs.soft_cap is None:
        if _is_kernel_wrong(queries):
            queries = queries.contiguous()
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, scale=inputs.scale
        )
    scores = (queries * inputs.scale) @ keys.transpose(2, 3)  # scaled first: float16 is narrow
    scores = capped(scores, 1.0, inputs.soft_cap).masked_fill_(~visible, -torch.inf)
    return scores.softmax(-1).to(values.dtype) @ values


def _is_kernel_wrong(queries: torch.Tensor) -> bool:
    """Whether torch's fused kernel with a mask needs contiguous tensors to be right.

    Else torch 2.11's for float32 is wrong for the last of 65, 129, 193 ... queries, by up to 0.3 of
    its size, and for no other; bfloat16 is right (seen on an H200).
    """
    return queries.is_cuda and queries.dtype == torch.float32


def _context(inputs: PrefillInputs, row: PrefillRow) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the row's context, [num_kv_heads, context, d] both."""
    if row.blocks is None:
        tokens = slice(row.start, row.start + row.num_tokens)
        return inputs.key[tokens].transpose(0, 1), inputs.value[tokens].transpose(0, 1)
    keys = _gather(inputs.kv.keys[row.blocks], row.context_len)
    return keys, _gather(inputs.kv.values[row.blocks].transpose(2, 3), row.context_len)


def _gather(blocks: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """[b, heads, block_size, d] to [heads, num_tokens, d]."""
    num_blocks, heads, size, dim = blocks.shape
    return blocks.transpose(0, 1).reshape(heads, num_blocks * size, dim)[:, :num_tokens]


def _visible(
    first: int, last: int, num_keys: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """bool[last - first, num_keys]: which keys the queries at [first, last) see."""
    positions = torch.arange(first, last, device=device).unsqueeze(1)
    keys = torch.arange(num_keys, device=device)
    visible = keys <= positions
    return visible if window is None else visible & (keys > positions - window)
