"""Sum over ranks + residual add + RMSNorm in one kernel, for GPUs that write each other's memory.

Each rank has an inbox that the others can write. A program sends its row to every other inbox,
waits until theirs are in its own, adds them all in rank order (so every rank has the same sum),
and goes on with the residual stream and the norm.

Nothing orders the words of a message: each word of 8 bytes carries 4 bytes of data and the number
of the sum that it belongs to, and the receiver reads until all words have that number. This is
NCCL's protocol LL. Inboxes are used in turn, two of them: a rank that sends sum n + 2 has received
all of sum n + 1, which the others only send when they are through with sum n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    launch_dependents,
    next_power_of_2,
    pdl_options,
    wait_for_previous,
)

if TYPE_CHECKING:
    from nanofw.kernels.all_reduce import Inboxes


@triton.jit
def _number(words, DTYPE: tl.constexpr):
    """float32 of the low 16 bits of each word, as a number of DTYPE."""
    return words.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def _places(addresses_ptr, rank, line, offs, WORDS: tl.constexpr):
    """Pointers to a line of a rank's inbox. Where they are aligned, accesses can be wide."""
    inbox = tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int64))
    places = inbox + (line * WORDS + offs)
    if WORDS % 2 == 0:
        places = tl.max_contiguous(tl.multiple_of(places, 16), offs.shape[0])
    return places


@triton.jit
def _sum_add_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    addresses_ptr,
    sums_ptr,
    eps,
    stride_x,
    stride_residual,
    stride_out,
    num_rows,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    WORDS: tl.constexpr,
    WORDS_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    launch_dependents(PDL)
    DTYPE: tl.constexpr = residual_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, WORDS_PAD)
    mask = offs < WORDS
    columns = tl.arange(0, 2 * WORDS_PAD)
    inside = columns < 2 * WORDS
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    number = tl.load(sums_ptr + row) + 1
    turn = (number & 1).to(tl.int64) * RANKS
    mine = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0)
    message = (mine.to(tl.int64) & 0xFFFFFFFF) | (number.to(tl.int64) << 32)
    for other in tl.static_range(RANKS):
        if other != RANK:
            line = (turn + RANK) * num_rows + row
            tl.store(_places(addresses_ptr, other, line, offs, WORDS), message, mask=mask)
    stream = residual_ptr + row * stride_residual + columns  # loaded while messages travel
    residual = tl.load(stream, mask=inside, other=0.0).to(tl.float32)
    low = tl.zeros([WORDS_PAD], tl.float32)
    high = tl.zeros([WORDS_PAD], tl.float32)
    for source in tl.static_range(RANKS):
        words = mine
        if source != RANK:
            line = (turn + source) * num_rows + row
            place = _places(addresses_ptr, RANK, line, offs, WORDS)
            got = tl.load(place, mask=mask, other=0, volatile=True)
            late = tl.sum((mask & ((got >> 32) != number)).to(tl.int32), axis=0)
            while late > 0:
                got = tl.load(place, mask=mask, other=0, volatile=True)
                late = tl.sum((mask & ((got >> 32) != number)).to(tl.int32), axis=0)
            words = got.to(tl.int32)
        low += _number(words, DTYPE)
        high += _number(words >> 16, DTYPE)
    tl.store(sums_ptr + row, number)

    x = tl.reshape(tl.join(low, high), [2 * WORDS_PAD])
    kept = (x + residual).to(DTYPE)
    tl.store(stream, kept, mask=inside)  # the stream keeps the model's precision
    x = kept.to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, axis=0) / (2 * WORDS) + eps) * weight
    tl.store(out_ptr + row * stride_out + columns, out.to(DTYPE), mask=inside)


def sum_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, inboxes: Inboxes
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual` += the ranks' sum of `x`, in place, and its RMSNorm. Returns norm, residual.

    Args:
        x: [rows, width] of a 16-bit type, this rank's part; it must fit the inboxes, and every
            rank must call this with as many rows.
        residual: [rows, width], the same on every rank.
    """
    num_rows, width = x.shape
    words = x.contiguous().view(torch.int32)
    out = torch.empty_like(residual)
    pad = next_power_of_2(width // 2)
    launch(
        _sum_add_norm_kernel, (num_rows,),
        words, residual, weight, out, inboxes.addresses, inboxes.sums, eps,
        words.stride(0), residual.stride(0), out.stride(0), inboxes.num_rows,
        RANK=inboxes.rank, RANKS=inboxes.size, WORDS=width // 2, WORDS_PAD=pad,
        num_warps=min(16, max(1, pad // 128)), **pdl_options(residual),
    )  # fmt: skip
    return out, residual
