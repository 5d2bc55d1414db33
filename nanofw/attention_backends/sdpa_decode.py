"""Attention of rows with one query token, block by block, without gathering their pages.

Every pair (row, block that it reads) is an entry. Entries are ordered by block, so that runs of
neighbouring blocks become views of the pool: one batched product computes the scores of a whole
run, whichever rows its blocks belong to. Maximum and sum are then taken per row over its
entries, as in split-k attention (Dao et al., "Flash-Decoding").

    pool       0  1  2  3  4  5  6  7  8  9 ...
    rows       a  a  b  -  b  c  -  -  -  a
    segments   [ view of 0..5 ]           [copy of 9]

A short gap in a run is computed too, and not used: that costs less than another call. Blocks that
stand alone are copied together, a few at a time. On other devices than the CPU all are copied:
there a pool is large and a gather cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.kernels.transfer import to_device

_MAX_GAP = 4  # blocks that are not used; computing one costs 4 us, a call 12, copying one 10
_MIN_RUN = 3  # blocks; below, two more calls cost more than copying the blocks
_MAX_COPIED = 64  # blocks copied at a time, so that they stay in the cache
_MASKED = -1e30  # finite: a block without a visible key must not give NaN


class LayerPool(NamedTuple):
    """Keys and values of one layer. One block more than asked for: padding is written there.

    Attributes:
        keys: [num_blocks + 1, num_kv_heads, block_size, head_dim].
        values: [num_blocks + 1, num_kv_heads, head_dim, block_size].
    """

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class Segment:
    """Entries [start, stop), and their blocks: a run that begins at `first`, or an index."""

    start: int
    stop: int
    first: int
    index: torch.Tensor | None


@dataclass(slots=True)
class DecodePart:
    """The single-query rows of a pass, for one sliding window. n rows, e entries.

    Entries of gaps belong to a row n that does not exist.

    Attributes:
        tokens: int64[n], the flat position of each row's query.
        owners: int64[e], the row of each entry.
        queries: int64[e], the flat position of its query.
        entries_of: int64[(n + 1) * m], m entries of each row: its own, the last one repeated.
        mask: float32[e, 1, 1, block_size], 0 where a key is visible, else very negative.
        segments: the entries in order.
    """

    tokens: torch.Tensor
    owners: torch.Tensor
    queries: torch.Tensor
    entries_of: torch.Tensor
    mask: torch.Tensor
    segments: list[Segment]


def prepare_decode(
    tokens: np.ndarray,
    context_lens: IntArray,
    tables: IntArray,
    block_size: int,
    window: int | None,
    device: torch.device,
) -> DecodePart:
    """Entries and segments of n rows.

    Args:
        tokens: int[n], flat position of each row's query.
        context_lens: int32[n], keys of each row, its own included.
        tables: int32[n, b], their blocks.
        window: how many keys a query sees, its own included; None: all.
    """
    num_rows = len(tokens)
    first_key = np.zeros_like(context_lens) if window is None else context_lens - window
    first_key = np.maximum(first_key, 0)
    first_block = first_key // block_size
    counts = (context_lens - 1) // block_size - first_block + 1
    begins = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(num_rows), counts)
    places = np.arange(len(owners)) - (begins - first_block)[owners]
    blocks = tables[owners, places].astype(np.int64)
    order, segments = _segments(blocks, device)
    is_gap = order < 0
    inverse = np.empty(len(blocks), np.int64)
    inverse[order[~is_gap]] = np.flatnonzero(~is_gap)
    entries_of = inverse[_padded(begins, counts)]
    owners, places = owners[order], places[order]
    mask = key_mask(first_key[owners], context_lens[owners], places * block_size, block_size)
    queries = tokens[owners].astype(np.int64)
    owners[is_gap] = num_rows
    return DecodePart(
        tokens=to_device(tokens.astype(np.int64), device),
        owners=to_device(owners, device),
        queries=to_device(queries, device),
        entries_of=to_device(np.concatenate((entries_of, entries_of[:1])).ravel(), device),
        mask=to_device(mask, device),
        segments=segments,
    )


def attend_decode(
    query: torch.Tensor,
    kv: LayerPool,
    part: DecodePart,
    scale: float,
    out: torch.Tensor,
    soft_cap: float | None = None,
) -> None:
    """Write the outputs of the part's rows into `out`; query and out are [t, num_heads, d]."""
    heads, size, dim = kv.keys.shape[1:]
    group = query.shape[1] // heads
    num_rows, num_entries = part.tokens.shape[0], part.owners.shape[0]
    lines = num_entries * heads
    if query.dtype == torch.float16:  # unscaled scores may leave its range
        query, scale = query * scale, 1.0
    by_entry = query.index_select(0, part.queries).view(lines, group, dim)
    scores = _scores(by_entry, kv.keys, part, scale, soft_cap)
    weights, total = _softmax(scores, part, num_rows)
    weights = weights.to(query.dtype).view(lines, group, size)
    partial = _products(kv.values, weights, part.segments)
    partial = partial.view(num_entries, heads, group, dim)
    summed = total.new_zeros(num_rows + 1, heads, group, dim)
    summed.index_add_(0, part.owners, partial.to(summed.dtype))
    result = (summed / total.unsqueeze(-1))[:num_rows]
    out.index_copy_(0, part.tokens, result.view(num_rows, -1, dim).to(out.dtype))


def capped(scores: torch.Tensor, scale: float, soft_cap: float) -> torch.Tensor:
    """Scores in float32, scaled and bounded by `soft_cap`."""
    return scores.float().mul_(scale / soft_cap).tanh_().mul_(soft_cap)


def _scores(
    by_entry: torch.Tensor,
    keys: torch.Tensor,
    part: DecodePart,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """Scaled and masked, float32[e, heads, group, size]; `by_entry` is [e * heads, group, d]."""
    heads, size, _ = keys.shape[1:]
    lines, group, _ = by_entry.shape
    masks = part.mask.expand(-1, heads, group, -1)
    if by_entry.dtype == torch.float32 and soft_cap is None:
        scores = masks.clone(memory_format=torch.contiguous_format)
        _products(keys, by_entry, part.segments, scores.view(lines, group, size), scale)
        return scores
    scores = _products(keys, by_entry, part.segments).view(-1, heads, group, size)
    if soft_cap is not None:
        scores, scale = capped(scores, scale, soft_cap), 1.0
    return torch.add(masks, scores, alpha=scale)


def _products(
    pool: torch.Tensor,
    left: torch.Tensor,
    segments: list[Segment],
    added: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """[e * heads, group, x]: each entry's [heads, group, y] times its block, [heads, x, y].

    Args:
        added: where the products, times `scale`, are added in place; None: nowhere.
    """
    heads, x, y = pool.shape[1:]
    flat = pool.view(-1, x, y)
    if len(segments) == 1 and added is None:
        return torch.bmm(left, _blocks(flat, segments[0], heads).transpose(1, 2))
    beta = 1 if added is not None else 0
    result = added
    if result is None:
        result = torch.empty((*left.shape[:2], x), dtype=pool.dtype, device=pool.device)
    lengths = [(segment.stop - segment.start) * heads for segment in segments]
    parts = zip(segments, left.split(lengths), result.split(lengths), strict=True)
    for segment, factor, product in parts:
        right = _blocks(flat, segment, heads).transpose(1, 2)
        product.baddbmm_(factor, right, beta=beta, alpha=scale)
    return result


def _softmax(
    weights: torch.Tensor, part: DecodePart, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of float32[e, heads, group, size] scores, in place, not yet divided, and their sums
    by row."""
    _, heads, group, _ = weights.shape
    by_row = weights.amax(-1).index_select(0, part.entries_of)
    highest = by_row.view(num_rows + 1, -1, heads, group).amax(1)
    weights.sub_(highest.index_select(0, part.owners).unsqueeze(-1)).exp_()
    total = torch.zeros_like(highest).index_add_(0, part.owners, weights.sum(-1))
    return weights, total


def _blocks(flat: torch.Tensor, segment: Segment, heads: int) -> torch.Tensor:
    """The segment's blocks out of [num_blocks * heads, x, y]: a view or a copy."""
    if segment.index is None:
        length = segment.stop - segment.start
        return flat.narrow(0, segment.first * heads, length * heads)
    _, x, y = flat.shape
    return flat.view(-1, heads, x, y).index_select(0, segment.index).view(-1, x, y)


def _segments(blocks: np.ndarray, device: torch.device) -> tuple[np.ndarray, list[Segment]]:
    """An order of int64[e] entries, -1 for a gap, and the segments that they form in it."""
    order = np.argsort(blocks, kind="stable")
    if device.type != "cpu":
        index = to_device(blocks[order], device)
        return order, [Segment(0, len(order), -1, index)]
    order, ordered = _repeats_last(order, blocks[order])
    order, ordered = _with_gaps(order, ordered)
    borders = np.flatnonzero(np.diff(ordered) != 1) + 1
    begins = np.concatenate(([0], borders))
    lengths = np.diff(np.concatenate((begins, [len(ordered)])))
    is_run = lengths >= _MIN_RUN
    in_run = np.repeat(is_run, lengths)
    is_lone = ~in_run & (order >= 0)
    segments: list[Segment] = []
    start = 0
    for first, length in zip(ordered[begins[is_run]], lengths[is_run], strict=True):
        segments.append(Segment(start, start + int(length), int(first), None))
        start += int(length)
    alone = torch.from_numpy(ordered[is_lone])
    for index in alone.split(_MAX_COPIED) if len(alone) else ():
        segments.append(Segment(start, start + len(index), -1, index))
        start += len(index)
    return np.concatenate((order[in_run], order[is_lone])), segments


def _with_gaps(order: np.ndarray, ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill short gaps of rising blocks with entries that belong to no row, -1 in the order."""
    steps = np.diff(ordered)
    is_gap = (steps > 1) & (steps <= _MAX_GAP + 1)
    if not is_gap.any():
        return order, ordered
    repeats = np.ones(len(ordered), np.int64)
    repeats[:-1][is_gap] = steps[is_gap]
    ends = np.cumsum(repeats)
    offsets = np.arange(ends[-1]) - np.repeat(ends - repeats, repeats)
    filled = np.repeat(order, repeats)
    filled[offsets > 0] = -1
    return filled, np.repeat(ordered, repeats) + offsets


def _repeats_last(order: np.ndarray, ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort by (how often the block came before, block): shared blocks do not break up runs."""
    new = np.concatenate(([True], np.diff(ordered) != 0))
    if new.all():
        return order, ordered
    counter = np.arange(len(ordered))
    repeats = counter - np.maximum.accumulate(np.where(new, counter, 0))
    again = np.lexsort((ordered, repeats))
    return order[again], ordered[again]


def _padded(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64[n, m]: `starts[i] + j`, with j held at `counts[i] - 1`."""
    steps = np.arange(counts.max())
    return starts[:, None] + np.minimum(steps[None, :], counts[:, None] - 1)


def key_mask(
    first_key: np.ndarray, context_lens: np.ndarray, positions: np.ndarray, block_size: int
) -> np.ndarray:
    """float32[e, 1, 1, block_size] from each entry's visible range and first position."""
    keys = positions[:, None] + np.arange(block_size)
    hidden = (keys >= context_lens[:, None]) | (keys < first_key[:, None])
    mask = np.where(hidden, np.float32(_MASKED), np.float32(0))
    return mask[:, None, None, :]
