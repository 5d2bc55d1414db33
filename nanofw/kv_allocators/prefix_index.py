"""Which blocks hold which content: a map of chained hashes that believes no hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from nanofw.core.types import IntArray
from nanofw.errors import AllocatorError

BlockHash: TypeAlias = Callable[[bytes, int], int]
"""Hash of a block's tokens (int32 bytes), given the hash of the block before it (0: none)."""


class Prefix:
    """Content that at least one block holds: the tokens of a full block and all before them.

    Two prefixes are equal when they are one object: there is one per content, and its parent
    lives as long as it does, because a row that holds a block holds all blocks before it, and
    a released tail is evicted before its head.

    Attributes:
        hash: chained hash, the key in the index.
        parent: the prefix one block shorter; None: this is the first block.
        tokens: the block's token ids, as the bytes of an int32 array.
        block: the block that is handed out to others.
        copies: further blocks in use that hold the same, written by rows that ran together.
    """

    __slots__ = ("block", "copies", "hash", "parent", "tokens")

    def __init__(self, hash_: int, parent: Prefix | None, tokens: bytes, block: int) -> None:
        self.hash = hash_
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.copies: set[int] | None = None


class PrefixIndex:
    """Finds the longest known prefix of a list of tokens, one probe per block.

    A hash only proposes: tokens and parent are compared before a block is handed out, so a
    collision costs a hit and nothing else. The map has at most one entry per block.

    Attributes:
        of_block: for each block the content that it holds, or None.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_block: BlockHash) -> None:
        self.of_block: list[Prefix | None] = [None] * num_blocks
        self._by_hash: dict[int, Prefix] = {}
        self._bytes_per_block = 4 * block_size
        self._hash_block = hash_block

    def __len__(self) -> int:
        return len(self._by_hash)

    def chunks(self, token_ids: IntArray) -> Iterator[bytes]:
        """The tokens of each full block of an int32 array, as bytes."""
        data, size = np.asarray(token_ids, np.int32).tobytes(), self._bytes_per_block
        return (data[end - size : end] for end in range(size, len(data) + 1, size))

    def find(self, token_ids: IntArray) -> list[int]:
        """The blocks that hold the longest known prefix of int32[t] tokens."""
        hash_block, by_hash = self._hash_block, self._by_hash
        blocks: list[int] = []
        parent, key = None, 0
        for tokens in self.chunks(token_ids):
            key = hash_block(tokens, key)
            prefix = by_hash.get(key)
            if prefix is None or prefix.parent is not parent or prefix.tokens != tokens:
                break
            blocks.append(prefix.block)
            parent = prefix
        return blocks

    def verify(self, token_ids: IntArray, blocks: list[int]) -> Prefix | None:
        """The content of the last of `blocks`; `AllocatorError` unless they hold the tokens."""
        parent = None
        chunks = self.chunks(token_ids)
        for block in blocks:
            prefix = self.of_block[block]
            if prefix is None or prefix.parent is not parent or prefix.tokens != next(chunks, b""):
                raise AllocatorError(
                    f"block {block} of the match does not hold these tokens (any more): "
                    "match again after every change of the allocator"
                )
            parent = prefix
        return parent

    def add(self, block: int, parent: Prefix | None, tokens: bytes) -> Prefix | None:
        """The block holds `tokens` after `parent`. None when other content has their hash."""
        key = self._hash_block(tokens, parent.hash if parent else 0)
        prefix = self._by_hash.get(key)
        if prefix is None:
            prefix = self._by_hash[key] = Prefix(key, parent, tokens, block)
        elif prefix.parent is not parent or prefix.tokens != tokens:
            return None
        elif prefix.copies is None:
            prefix.copies = {block}
        else:
            prefix.copies.add(block)
        self.of_block[block] = prefix
        return prefix

    def remove_copy(self, block: int) -> bool:
        """Forget what the block holds if another block holds the same, else return False."""
        prefix = self.of_block[block]
        if prefix is None or not prefix.copies:
            return prefix is None
        if prefix.block == block:
            prefix.block = prefix.copies.pop()
        else:
            prefix.copies.remove(block)
        self.of_block[block] = None
        return True

    def remove(self, block: int) -> None:
        """Forget the content of a block that alone holds it: the block is about to be reused."""
        prefix = self.of_block[block]
        assert prefix is not None, "an evictable block holds nothing"
        assert not prefix.copies, "an evictable block has copies in use"
        del self._by_hash[prefix.hash]
        self.of_block[block] = None

    def check(self) -> None:
        """Raise `AllocatorError` unless map, blocks and chains agree."""
        num_registered = 0
        for key, prefix in self._by_hash.items():
            parent = prefix.parent
            if key != self._hash_block(prefix.tokens, parent.hash if parent else 0):
                raise AllocatorError(f"block {prefix.block} is registered under a wrong hash")
            if parent is not None and self._by_hash.get(parent.hash) is not parent:
                raise AllocatorError(f"block {prefix.block} follows content that is gone")
            holders = {prefix.block, *(prefix.copies or ())}
            num_registered += len(holders)
            if any(self.of_block[block] is not prefix for block in holders):
                raise AllocatorError(f"blocks {holders} do not hold what the map says")
        if num_registered != sum(prefix is not None for prefix in self.of_block):
            raise AllocatorError("a block holds content that the map does not know")
