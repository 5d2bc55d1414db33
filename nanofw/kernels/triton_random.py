"""The random numbers of `random.py`, for kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix64(value):
    """Scramble uint64, one to one."""
    value = (value ^ (value >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def mix32(value):
    """Scramble uint32, one to one."""
    value = (value ^ (value >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    value = (value ^ (value >> 15)) * tl.full((), 0x846CA68B, tl.uint32)
    return value ^ (value >> 16)


@triton.jit
def draw_key(row_key, position, stream):
    """uint64 key of a row's draw at a position (int64, any integer, constexpr)."""
    counter = position.to(tl.uint64) * tl.full((), 0x9E3779B97F4A7C15, tl.uint64) + stream
    return mix64(row_key.to(tl.uint64, bitcast=True) + mix64(counter))


@triton.jit
def gumbel(key, token_ids):
    """float32 Gumbel noise of int32 token ids under one uint64 key."""
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    bits = mix32(mix32(token_ids.to(tl.uint32, bitcast=True) ^ low) ^ high)
    w = ((bits >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    series = w * (1.0 + w * (0.5 + w * 0.3333333333333333))
    tail = -tl.log(tl.maximum(1.0 - w, 2.9802322387695312e-08))
    return -tl.log(tl.where(w < 0.00390625, series, tail))
