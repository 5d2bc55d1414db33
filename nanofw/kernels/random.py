"""Random numbers from a counter: the same 32 bits for the same place, always.

A number belongs to (seed, sample index, stream, position, token id). The first three are mixed
on the host once per request (`base_key`), the position once per step and row
(`position_keys`), and only the last step runs per token (`random_bits`): one multiplication for
the id, then two rounds of multiplication and shift, keyed before each. In Triton the same
operations on `uint32` give the same bits.

The rounds are those of a 32-bit hash that was searched for its avalanche behaviour (C. Wellons,
"Hash Prospector", with later improved constants); 64-bit mixing is that of SplitMix64.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from nanofw.contracts import splitmix64

SAMPLING = 0
"""Stream of the numbers that tokens are sampled with."""

STREAMS: Mapping[str, int] = MappingProxyType({"sampling": SAMPLING})
"""Streams that nanofw itself takes, by what they are for: always numbers below 16.

Numbers from `FIRST_PLUGIN_STREAM` to 255 belong to plugins. Two plugins of one run that draw
numbers take different streams, so let an option choose yours.
"""
FIRST_PLUGIN_STREAM = 16
_NUM_STREAMS = 256

GOLDEN = 0x9E3779B1 - (1 << 32)  # 2**32 / golden ratio, odd, as a signed number
FIRST = 0x21F0AAAD
SECOND = 0xD35A2D97 - (1 << 32)
_SCALE = 2.0**-32
_BELOW_ONE = 1.0 - 2.0**-24


def base_key(seed: int, sample_index: int, stream: int = SAMPLING) -> tuple[int, int]:
    """Two signed 32-bit words that stand for a request's stream of numbers.

    Raises ValueError for a stream that is not from 0 to 255.
    """
    if not 0 <= stream < _NUM_STREAMS:
        raise ValueError(f"stream is {stream}; it must be from 0 to {_NUM_STREAMS - 1}")
    state = _next(seed)
    state = _next(state ^ _next((sample_index << 8) + stream + 1))
    return _signed(state & 0xFFFFFFFF), _signed(state >> 32)


def position_keys(base_keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """int32[s, 2] keys of rows with int32[s, 2] base keys at int32[s] positions."""
    first = _finalise(base_keys[:, 0] + positions * GOLDEN)
    second = _finalise(first ^ base_keys[:, 1])
    return torch.stack((first, second), dim=1)


def random_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """32 random bits for each token of each row.

    Args:
        keys: int32[s, 2], from `position_keys`.
        token_ids: int32[n] or int32[s, n], ids in the whole vocabulary.

    Returns:
        int32[s, n], uniform over all 32-bit words.
    """
    bits = (token_ids * GOLDEN) ^ keys[:, :1]
    bits ^= _shifted(bits, 16)
    bits *= FIRST
    bits += keys[:, 1:]
    bits ^= _shifted(bits, 15)
    bits *= SECOND
    bits ^= _shifted(bits, 15)
    return bits


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """Uniformly distributed float32 of the same shape, above 0 and below 1."""
    u = bits.view(torch.uint32).to(torch.float32)
    return u.add_(0.5).mul_(_SCALE).clamp_(max=_BELOW_ONE)


def exponential(bits: torch.Tensor) -> torch.Tensor:
    """Exponentially distributed float32 of the same shape, positive and finite.

    `-log(1 - u)` with u in (0, 1) from all 32 bits: small values, which win, keep full
    relative precision.
    """
    return uniform(bits).neg_().log1p_().neg_()


def _finalise(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 16)) * FIRST
    x = (x ^ _shifted(x, 15)) * SECOND
    return x ^ _shifted(x, 15)


def _shifted(x: torch.Tensor, count: int) -> torch.Tensor:
    """Logical right shift of int32: torch has only the arithmetic one."""
    return (x >> count).bitwise_and_((1 << (32 - count)) - 1)


def _next(state: int) -> int:
    """SplitMix64's number after a state of 64 bits."""
    return splitmix64.mix((state + splitmix64.GOLDEN) & splitmix64.WORD)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
