"""The finalizer of SplitMix64: scrambles 64-bit numbers, one to one.

Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

HashArray: TypeAlias = NDArray[np.uint64]

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: the step of the generator."""
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
"""What the finalizer multiplies with, after the first and the second shift."""

_FIRST, _SECOND = np.uint64(FIRST), np.uint64(SECOND)
_S27, _S30, _S31 = (np.uint64(shift) for shift in (27, 30, 31))


def mix(value: int) -> int:
    """Scramble a number from 0 to 2**64 - 1."""
    value = ((value ^ (value >> 30)) * FIRST) & WORD
    value = ((value ^ (value >> 27)) * SECOND) & WORD
    return value ^ (value >> 31)


def mix_array(values: HashArray) -> HashArray:
    """Scramble uint64[n]."""
    values = values ^ (values >> _S30)
    values *= _FIRST
    values ^= values >> _S27
    values *= _SECOND
    values ^= values >> _S31
    return values
