"""What top-k, top-p and min-p keep, found without a sort.

The tokens of a line are ordered by logit, then by id, the lower first. Each rule keeps a
beginning of that order, so all of them together are one place in it: a logit, and the last id
that is kept among those with this very logit. The logit is found by a four-way search over
the bit patterns of float32 in numerical order, two bits a pass over the line; the id, only
where a tie is cut, by bisection.

One program a line; the line stays in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.triton.common import next_power_of_2

BLOCK = 8192
LOWEST = tl.constexpr(-2147483648)
LAST_ID = tl.constexpr(2147483647)


@triton.jit
def ordered_key(x):
    """int32 in the numerical order of float32; both zeros are one value."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _load(logits, token, vocab_size):
    x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
    return x.to(tl.float32)


@triton.jit
def _counts(logits, vocab_size, trial, step, BLOCK: tl.constexpr):
    """Tokens with keys of at least trial + step, + 2 step, + 3 step (unsigned offsets)."""
    offs = tl.arange(0, BLOCK)
    count1 = tl.zeros((BLOCK,), tl.int32)
    count2 = tl.zeros((BLOCK,), tl.int32)
    count3 = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + offs
        key = ordered_key(_load(logits, token, vocab_size))
        real = token < vocab_size
        count1 += ((key >= (trial + step) ^ LOWEST) & real).to(tl.int32)
        count2 += ((key >= (trial + 2 * step) ^ LOWEST) & real).to(tl.int32)
        count3 += ((key >= (trial + 3 * step) ^ LOWEST) & real).to(tl.int32)
    return tl.sum(count1, axis=0), tl.sum(count2, axis=0), tl.sum(count3, axis=0)


@triton.jit
def _masses(logits, vocab_size, trial, step, above, base, scale, BLOCK: tl.constexpr):
    """Mass of the tokens with such keys that are greater than `above`."""
    offs = tl.arange(0, BLOCK)
    mass1 = tl.zeros((BLOCK,), tl.float32)
    mass2 = tl.zeros((BLOCK,), tl.float32)
    mass3 = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        x = _load(logits, begin + offs, vocab_size)
        key = ordered_key(x)
        mass = tl.where(key > above, tl.exp((x - base) * scale), 0.0)
        mass1 += tl.where(key >= (trial + step) ^ LOWEST, mass, 0.0)
        mass2 += tl.where(key >= (trial + 2 * step) ^ LOWEST, mass, 0.0)
        mass3 += tl.where(key >= (trial + 3 * step) ^ LOWEST, mass, 0.0)
    return tl.sum(mass1, axis=0), tl.sum(mass2, axis=0), tl.sum(mass3, axis=0)


@triton.jit
def _at_or_above(logits, vocab_size, key_from, base, scale, BLOCK: tl.constexpr):
    """The lowest key that is at least `key_from`; how many have it; count and mass above it."""
    offs = tl.arange(0, BLOCK)
    lowest = tl.full((BLOCK,), LAST_ID, tl.int32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + offs
        key = ordered_key(_load(logits, token, vocab_size))
        inside = (key >= key_from) & (token < vocab_size)
        lowest = tl.where(inside, tl.minimum(lowest, key), lowest)
    least = tl.min(lowest, axis=0)
    equal = tl.zeros((BLOCK,), tl.int32)
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + offs
        x = _load(logits, token, vocab_size)
        key = ordered_key(x)
        real = token < vocab_size
        equal += ((key == least) & real).to(tl.int32)
        count += ((key > least) & real).to(tl.int32)
        mass += tl.where(key > least, tl.exp((x - base) * scale), 0.0)
    return least, tl.sum(equal, axis=0), tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _value(key):
    """The float32 with this key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "keys_ptr", "last_ids_ptr"])
def _cutoff_kernel(
    logits_ptr,
    rows_ptr,
    inverse_temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    keys_ptr,
    last_ids_ptr,
    vocab_size,
    stride_logits,
    LOW_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + line).to(tl.int64)
    scale = tl.load(inverse_temperatures_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    logits = logits_ptr + line * stride_logits
    offs = tl.arange(0, BLOCK)
    cuts_k = (top_k > 0) & (top_k < vocab_size)
    min_p = tl.load(min_p_ptr + row)
    cuts = cuts_k | (top_p < 1.0) | (min_p > 0.0)
    cut = tl.full((), LOWEST, tl.int32)
    # How many tokens of the cut logit are kept, and how many there are.
    wanted = tl.full((), LAST_ID, tl.int32)
    equal = tl.full((), 0, tl.int32)
    if (scale > 0.0) & cuts:
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        for begin in range(0, vocab_size, BLOCK):
            highest = tl.maximum(highest, _load(logits, begin + offs, vocab_size))
        base = tl.max(highest, axis=0)
        # Of what top-k keeps: the mass above its last logit, and the mass of its share there.
        inside = tl.zeros((), tl.float32)
        if cuts_k:
            pivot = tl.full((), 0, tl.int32)
            for i in range(0, 32 - LOW_BITS, 2):
                step = tl.full((), 1, tl.int32) << (30 - i)
                count1, count2, count3 = _counts(logits, vocab_size, pivot, step, BLOCK)
                enough = (count1 >= top_k).to(tl.int32) + (count2 >= top_k).to(tl.int32)
                pivot += step * (enough + (count3 >= top_k).to(tl.int32))
            cut, equal, count, mass = _at_or_above(
                logits, vocab_size, pivot ^ LOWEST, base, scale, BLOCK
            )
            wanted = top_k - count
            inside = wanted.to(tl.float32) * tl.exp((_value(cut) - base) * scale)
        lowest = ordered_key(base + tl.log(tl.maximum(min_p, 1e-37)) / scale)
        if (min_p > 0.0) & (lowest > cut):
            # Everything above the key just below, and nothing with that key.
            cut = lowest - 1
            wanted = tl.full((), 0, tl.int32)
            equal = tl.full((), 1, tl.int32)
            inside = tl.zeros((), tl.float32)
        if top_p < 1.0:
            zero = tl.full((), 0, tl.int32)
            total1, _, _ = _masses(logits, vocab_size, zero, zero, cut, base, scale, BLOCK)
            enough_mass = top_p * (total1 + inside)
            pivot = tl.full((), 0, tl.int32)
            for i in range(0, 32 - LOW_BITS, 2):
                step = tl.full((), 1, tl.int32) << (30 - i)
                mass1, mass2, mass3 = _masses(
                    logits, vocab_size, pivot, step, cut, base, scale, BLOCK
                )
                # At or below the logit that top-k ends in, its share there counts too.
                mass1 += tl.where(((pivot + step) ^ LOWEST) <= cut, inside, 0.0)
                mass2 += tl.where(((pivot + 2 * step) ^ LOWEST) <= cut, inside, 0.0)
                mass3 += tl.where(((pivot + 3 * step) ^ LOWEST) <= cut, inside, 0.0)
                enough = (mass1 >= enough_mass).to(tl.int32) + (mass2 >= enough_mass).to(tl.int32)
                pivot += step * (enough + (mass3 >= enough_mass).to(tl.int32))
            least, ties, _, mass = _at_or_above(
                logits, vocab_size, tl.maximum(pivot ^ LOWEST, cut), base, scale, BLOCK
            )
            each = tl.exp((_value(least) - base) * scale)
            share = tl.ceil((enough_mass - mass) / each)
            share = tl.minimum(tl.maximum(share, 1.0), 2147483520.0).to(tl.int32)
            wanted = tl.where(least == cut, tl.minimum(wanted, share), share)
            cut, equal = least, ties
    last_id = tl.full((), LAST_ID, tl.int32)
    if equal > wanted:
        # The lowest id up to which `wanted` tokens have the cut logit.
        low = tl.full((), 0, tl.int32)
        high = vocab_size - 1
        while low < high:
            middle = (low + high) // 2
            found = tl.zeros((BLOCK,), tl.int32)
            for begin in range(0, middle + 1, BLOCK):
                token = begin + offs
                key = ordered_key(_load(logits, token, vocab_size))
                found += ((key == cut) & (token <= middle)).to(tl.int32)
            reached = tl.sum(found, axis=0) >= wanted
            high = tl.where(reached, middle, high)
            low = tl.where(reached, low, middle + 1)
        last_id = tl.where(wanted > 0, low, -1)
    tl.store(keys_ptr + line, cut)
    tl.store(last_ids_ptr + line, last_id)


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The end of what each of s lines keeps, in the order of logits, then ids.

    Attributes:
        keys: int32[s], `ordered_key` of the lowest logit that is kept.
        last_ids: int32[s], the last column kept among those with this logit.
    """

    keys: torch.Tensor
    last_ids: torch.Tensor


def cutoffs_of(logits: torch.Tensor, rows: torch.Tensor, sampling: RowSampling) -> Cutoffs:
    """Where each line is cut: by top-k and min-p, then by top-p of what these leave.

    Top-p takes the smallest beginning of the order that reaches its share of the mass, which is
    summed in float32; min-p takes tokens of at least that share of the most likely one's
    probability. Greedy rows are not cut.

    Args:
        logits: [s, vocab], any floating type, last dimension contiguous.
        rows: integers [s], index of each line in `sampling`.
    """
    num_lines, vocab_size = logits.shape
    keys = torch.empty(num_lines, dtype=torch.int32, device=logits.device)
    last_ids = torch.empty_like(keys)
    if num_lines:
        block = min(BLOCK, next_power_of_2(vocab_size))
        launch(
            _cutoff_kernel, (num_lines,),
            logits, rows, sampling.inverse_temperatures,
            sampling.top_k, sampling.top_p, sampling.min_p, keys, last_ids,
            vocab_size, logits.stride(0),
            # Patterns of bfloat16 differ in the upper half alone.
            LOW_BITS=16 if logits.dtype == torch.bfloat16 else 0,
            BLOCK=block, num_warps=16 if block >= 4096 else 4,
        )  # fmt: skip
    return Cutoffs(keys, last_ids)
