"""Tokens by rule: pure functions of (seed, sample index, position), as a counter-based sampler."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.splitmix64 import GOLDEN, WORD, HashArray, mix, mix_array

STEP = np.uint64(GOLDEN)
_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


def row_key(seed: int, sample_index: int) -> int:
    """One 64-bit number for all random numbers of a row."""
    return mix((seed * 0xD1342543DE82EF95 + sample_index * 0xA0761D6478BD642F + 1) & WORD)


def position_number(keys: HashArray, positions: IntArray) -> HashArray:
    """uint64[s], a number for each row key and position, uniform over the positions of a key.

    Numbers of neighbours are a fixed step apart (a Weyl sequence), which does for tokens that
    mean nothing; `position_hash` scrambles them.
    """
    numbers = positions.astype(np.uint64)
    numbers *= STEP
    numbers += keys
    return numbers


def position_hash(keys: HashArray, positions: IntArray) -> HashArray:
    """uint64[s], the random number of each row key at the position that the token will have."""
    return mix_array(position_number(keys, positions))


def below(hashes: HashArray, bound: int) -> IntArray:
    """int32[s] in [0, bound), from the upper half of each number."""
    return (((hashes >> _S32) * np.uint64(bound)) >> _S32).astype(np.int32)


def chance(hashes: HashArray, probability: float) -> BoolArray:
    """bool[s], true with that probability, from the lower half of each number."""
    return (hashes & _LOW) < np.uint64(round(probability * (1 << 32)))


class TokenRule:
    """Which token a number stands for: end tokens at a rate, any other uniformly.

    Without `eos_probability` no end token is ever sampled, so that lengths are those asked for.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], eos_probability: float
    ) -> None:
        self._vocab_size = vocab_size
        self._ends = sorted({e for e in eos_token_ids if 0 <= e < vocab_size})
        self._others = np.delete(np.arange(vocab_size, dtype=np.int32), self._ends)
        self._probability = eos_probability if self._ends else 0.0
        if len(self._ends) == vocab_size:
            self._probability = 1.0

    def tokens(self, hashes: HashArray) -> IntArray:
        """int32[s], one token for each number."""
        if not len(self._others):
            return np.full(len(hashes), self._ends[0], np.int32)
        sampled = self._others.take(below(hashes, len(self._others)))
        if self._probability:
            sampled[chance(hashes, self._probability)] = self._ends[0]
        return sampled

    def allowed_token(self, number: HashArray, bits: IntArray) -> int | None:
        """The token of uint64[1] among those whose bit is set; None when none is."""
        little = np.ascontiguousarray(bits, "<i4").view(np.uint8)
        allowed = np.flatnonzero(np.unpackbits(little, bitorder="little")[: self._vocab_size])
        if not len(allowed):
            return None
        is_end = np.isin(allowed, self._ends)
        ends, others = allowed[is_end], allowed[~is_end]
        if len(ends) and (not len(others) or bool(chance(number, self._probability)[0])):
            return int(ends[0])
        return int(others[below(number, len(others))[0]])
