"""Prompts by rule: token ids as a pure function of a key, so that equal keys share a prefix."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.splitmix64 import FIRST, GOLDEN, SECOND, WORD


def tokens_by_key(key: int, num_tokens: int, vocab_size: int) -> IntArray:
    """int32[num_tokens] below `vocab_size`: SplitMix64 (Steele et al. 2014) from `key` on.

    A longer prompt of the same key begins with the shorter one.
    """
    start = np.uint64((key * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & WORD)
    z = np.arange(num_tokens, dtype=np.uint64) * np.uint64(GOLDEN) + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return (((z >> np.uint64(32)) * np.uint64(vocab_size)) >> np.uint64(32)).astype(np.int32)


def key_of(*parts: int) -> int:
    """One key from several numbers."""
    key = 0
    for part in parts:
        key = ((key ^ part) * 0xA0761D6478BD642F + 0xE7037ED1A0B428DB) & WORD
        key ^= key >> 29
    return key
