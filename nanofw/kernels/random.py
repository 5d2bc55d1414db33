"""Random numbers from a counter: each is a function of (seed, sample index, position, stream,
global token id) and of nothing else, so that it is the same in every batch and on every rank.

    key  = mix64(row_key(seed, sample index) + mix64(position * GOLDEN + stream))
    bits = mix32(mix32(token id ^ low half of key) ^ high half of key)

`mix64` is the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), `mix32` a 32-bit finalizer of the same make with constants by
C. Wellons ("Prospecting for hash functions", lowbias32). From 31 of the bits comes w in (0, 1),
then E = -log(1 - w), exponential, and the Gumbel noise -log(E). Large noise means small w,
where floats are dense: the tail that decides draws is resolved to 2^-32.

`triton_random.py` has the same definition for kernels. Logarithms differ in the last place
between devices, the bits do not.
"""

from __future__ import annotations

import torch

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MIX32 = (0x7FEB352D, 0x846CA68B)
SERIES_BELOW = 2.0**-8
STREAM_GUMBEL = 0


def row_key(seed: int, sample_index: int) -> int:
    """One signed 64-bit number for all random numbers of a row."""
    value = (seed * 0xD1342543DE82EF95 + sample_index * 0xA0761D6478BD642F + 1) & WORD
    value = ((value ^ (value >> 30)) * MIX64[0]) & WORD
    value = ((value ^ (value >> 27)) * MIX64[1]) & WORD
    return _signed(value ^ (value >> 31), 64)


def draw_keys(
    row_keys: torch.Tensor, positions: torch.Tensor, stream: int = STREAM_GUMBEL
) -> torch.Tensor:
    """int64[s], the key of each row's draw at the position that the token will have.

    Args:
        row_keys: int64[s], of `row_key`.
        positions: int64[s] or int32[s].
    """
    return _mix64(row_keys + _mix64(positions.long() * _signed(GOLDEN, 64) + stream))


def random_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """int32 of 32 random bits for each key int64[...] and token id int32[...], broadcast."""
    low, high = keys.to(torch.int32), (keys >> 32).to(torch.int32)
    return _mix32(_mix32(token_ids.to(torch.int32) ^ low) ^ high)


def exponential(bits: torch.Tensor) -> torch.Tensor:
    """float32, exponentially distributed, of int32 random bits."""
    w = (((bits >> 1) & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31
    series = w * (1.0 + w * (0.5 + w * (1.0 / 3.0)))
    return torch.where(w < SERIES_BELOW, series, -torch.log((1.0 - w).clamp_min(2.0**-25)))


def gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """float32 Gumbel noise: argmax(logits / temperature + noise) draws from the softmax."""
    return -torch.log(exponential(random_bits(keys, token_ids)))


def _mix64(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift(value, 30, 64)) * _signed(MIX64[0], 64)
    value = (value ^ _shift(value, 27, 64)) * _signed(MIX64[1], 64)
    return value ^ _shift(value, 31, 64)


def _mix32(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift(value, 16, 32)) * _signed(MIX32[0], 32)
    value = (value ^ _shift(value, 15, 32)) * _signed(MIX32[1], 32)
    return value ^ _shift(value, 16, 32)


def _shift(value: torch.Tensor, by: int, width: int) -> torch.Tensor:
    """Right shift that brings zeros in."""
    return (value >> by) & ((1 << (width - by)) - 1)


def _signed(value: int, width: int) -> int:
    """The two's complement number of these bits."""
    return value - (1 << width) if value >> (width - 1) else value
