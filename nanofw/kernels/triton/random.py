"""The random numbers of `random.py`, for kernels: the same 32 bits for the same place."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finalise(x):
    x = (x ^ (x >> 16)) * tl.full((), 0x21F0AAAD, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), 0xD35A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def position_key(base_key_ptr, position):
    """Two uint32 words: the key of the row whose base key int32[2] is there, at a position."""
    first = tl.load(base_key_ptr).to(tl.uint32, bitcast=True)
    second = tl.load(base_key_ptr + 1).to(tl.uint32, bitcast=True)
    golden = tl.full((), 0x9E3779B1, tl.uint32)
    first = _finalise(first + position.to(tl.uint32) * golden)
    return first, _finalise(first ^ second)


@triton.jit
def random_bits(first, second, token_ids):
    """uint32 random bits of int32 token ids under one key."""
    bits = (token_ids.to(tl.uint32) * tl.full((), 0x9E3779B1, tl.uint32)) ^ first
    bits = (bits ^ (bits >> 16)) * tl.full((), 0x21F0AAAD, tl.uint32) + second
    bits = (bits ^ (bits >> 15)) * tl.full((), 0xD35A2D97, tl.uint32)
    return bits ^ (bits >> 15)


@triton.jit
def log_exponential(bits):
    """Logarithm of the exponentially distributed number that `random.exponential` makes of it.

    Its `-log1p(-u)`: a series where u is small, else the logarithm of what is left of 1.
    """
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355)
    series = u * (1.0 + u * (0.5 + u * 0.3333333333333333))
    return tl.log(tl.where(u < 0.00390625, series, -tl.log(1.0 - u)))
