"""Which blocks hold which content: a map of chained hashes that believes no hash.

Content is the tokens of a full block and all before them. While a block holds it, its hash names
it: other content of the same hash is not taken in, so equal hashes of known content are equal
content. Content of a hash that a block gives up may be named by that hash again later; nothing
that follows it is known by then, because a row that holds a block holds all blocks before it,
and a released tail is evicted before its head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import xxhash

from nanofw.contracts.arrays import IntArray
from nanofw.errors import AllocatorError

BlockHash: TypeAlias = Callable[[bytes, int], int]
"""Hash of a block's tokens (int32 bytes), given the hash of the block before it, or the salt."""

ContentKey: TypeAlias = int | None
"""The hash of known content. None stands for no tokens, which come before every prompt; a
negative number below `UNKNOWN` for no tokens under a salt (`root`)."""

UNKNOWN = -1
"""Stands for content that is not known, because other content has its hash."""


def root(salt: int) -> ContentKey:
    """What comes before the first block of a prompt with this salt; no hash equals it."""
    return -2 - salt if salt else None


def seed(parent: ContentKey) -> int:
    """What the hash of a block starts from, given the content before it."""
    if parent is None:
        return 0
    return parent if parent >= 0 else -2 - parent


MAX_CHAINS = 512
"""Prompts whose hashes are remembered: those that wait are matched again and again."""


class _Chain:
    """Hashes of a prompt's blocks, as far as they were asked for.

    Attributes:
        keys: the hashes, at least one.
        depth: how many of them were known the last time.
    """

    __slots__ = ("_data", "_hash_block", "_size", "depth", "keys")

    def __init__(self, first: int, data: bytes, size: int, hash_block: BlockHash) -> None:
        self.keys = [first]
        self.depth = 0
        self._data, self._size, self._hash_block = data, size, hash_block

    def is_of(self, data: bytes) -> bool:
        """Whether these are its prompt's tokens: a digest is believed no more than a hash."""
        return self._data == data

    def is_sound(self) -> bool:
        """Whether the hashes are those of the prompt. All but the first: its salt is not kept."""
        size = self._size
        parts = (self._data[i * size : (i + 1) * size] for i in range(1, len(self.keys)))
        follow = (self._hash_block(part, key) for part, key in zip(parts, self.keys, strict=False))
        return 0 <= self.depth <= len(self.keys) and self.keys[1:] == list(follow)

    def grow(self) -> bool:
        """Add the next hash; False when there is no full block left."""
        start = len(self.keys) * self._size
        end = start + self._size
        if end > len(self._data):
            return False
        self.keys.append(self._hash_block(self._data[start:end], self.keys[-1]))
        return True


class PrefixIndex:
    """Finds the longest known prefix of a list of tokens, one probe per block.

    A hash only proposes: tokens and what is before them are compared before a block is handed
    out, so a collision costs a hit and nothing else. The map has at most one entry per block.

    Attributes:
        keys: for each block the content that it holds, or None.
        copies: blocks in use that hold content for which another block is handed out, written
            by rows that ran together.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_block: BlockHash) -> None:
        self.keys: list[ContentKey] = [None] * num_blocks
        self.copies: dict[int, set[int]] = {}
        self._parents: list[ContentKey] = [None] * num_blocks
        self._tokens = np.zeros((num_blocks, block_size), np.int32)
        self._by_key: dict[int, int] = {}
        self._chains: dict[int, _Chain] = {}  # by the digest of a prompt
        self._block_size, self._size = block_size, 4 * block_size
        self._hash_block = hash_block

    def find(self, token_ids: IntArray, salt: int = 0) -> list[int]:
        """The blocks that hold the longest known prefix of int32[t] tokens under a salt."""
        chain = self._chain(token_ids, salt)
        if chain is None:
            return []
        blocks: list[int] = []
        by_key, parents, keys = self._by_key, self._parents, chain.keys
        parent = root(salt)
        for key in keys:  # grows while it is walked through
            block = by_key.get(key)
            if block is None or parents[block] != parent:
                break
            blocks.append(block)
            parent = key
            if len(blocks) == len(keys):
                chain.grow()
        if not blocks:
            return []
        equal = self._are_equal(token_ids, blocks)
        return blocks if equal.all() else blocks[: int(equal.argmin())]

    def depth(self, token_ids: IntArray, salt: int = 0) -> int:
        """How many blocks `find` finds, by the hashes alone, from where it was the last time."""
        chain = self._chain(token_ids, salt)
        if chain is None:
            return 0
        depth, keys, known = chain.depth, chain.keys, self._by_key
        while depth and keys[depth - 1] not in known:  # the tail goes before the head
            depth -= 1
        while (depth < len(keys) or chain.grow()) and keys[depth] in known:
            depth += 1
        chain.depth = depth
        return depth

    def _chain(self, token_ids: IntArray, salt: int) -> _Chain | None:
        """The hashes of a prompt's blocks; None when not even the first is known."""
        token_ids = np.asarray(token_ids, np.int32)
        if len(token_ids) < self._block_size or not self._by_key:
            return None
        first = self._hash_block(token_ids[: self._block_size].tobytes(), salt)
        if first not in self._by_key:  # the usual end, before anything is copied
            return None
        data = token_ids.tobytes()
        digest = xxhash.xxh3_128_intdigest(data, seed=salt)
        chain = self._chains.pop(digest, None)
        if chain is None or chain.keys[0] != first or not chain.is_of(data):
            chain = _Chain(first, data, self._size, self._hash_block)
        if len(self._chains) >= MAX_CHAINS:
            del self._chains[next(iter(self._chains))]
        self._chains[digest] = chain
        return chain

    def _are_equal(self, token_ids: IntArray, blocks: Sequence[int]) -> np.ndarray:
        """bool[b]: whether each block holds the tokens at its place."""
        asked = token_ids[: len(blocks) * self._block_size].reshape(len(blocks), -1)
        return (self._tokens[blocks] == asked).all(axis=1)

    def verify(self, token_ids: IntArray, blocks: Sequence[int], salt: int = 0) -> ContentKey:
        """The content of the last of `blocks`; `AllocatorError` unless they hold the tokens."""
        parent = root(salt)
        for block in blocks:
            key = self.keys[block]
            if key is None or self._parents[block] != parent:
                raise _outdated(block)
            parent = key
        if len(token_ids) < len(blocks) * self._block_size:
            raise _outdated(blocks[-1])
        equal = self._are_equal(token_ids, blocks) if len(blocks) else np.ones(0, np.bool_)
        if not equal.all():
            raise _outdated(blocks[int(equal.argmin())])
        return parent

    def add_blocks(
        self, tips: list[ContentKey], rows: Sequence[int], blocks: IntArray, tokens: IntArray
    ) -> tuple[list[int], list[int]]:
        """Each of b blocks holds one row of int32[b, block_size] after the content `tips[row]`.

        The tip of its row moves on to it. Where other content has the hash, the tip becomes
        `UNKNOWN`, as it stays for all that follow.

        Returns:
            Blocks that were known for the same content before, and the row of each block that
            did not become known.
        """
        self._tokens[blocks] = tokens
        hash_block, setdefault = self._hash_block, self._by_key.setdefault
        keys, parents = self.keys, self._parents
        contents: list[bytes] = tokens.view(f"V{self._size}")[:, 0].tolist()
        equal, unknown = list[int](), list[int]()
        for row, block, content in zip(rows, blocks.tolist(), contents, strict=True):
            parent = tips[row]
            if parent == UNKNOWN:
                unknown.append(row)
                continue
            # Nearly always the hash of the block before it, which needs no call.
            start = parent if parent and parent > 0 else seed(parent)
            key = hash_block(content, start)
            holder = setdefault(key, block)
            if holder != block:
                if not self._holds(holder, parent, content):
                    tips[row] = UNKNOWN
                    unknown.append(row)
                    continue
                self.copies.setdefault(key, set()).add(block)
                equal.append(holder)
            keys[block] = tips[row] = key
            parents[block] = parent
        return equal, unknown

    def _holds(self, block: int, parent: ContentKey, tokens: bytes) -> bool:
        return self._parents[block] == parent and self._tokens[block].tobytes() == tokens

    def remove_copy(self, block: int) -> bool:
        """Forget what the block holds if another block holds the same, else return False."""
        key = self.keys[block]
        copies = self.copies.get(key) if key is not None else None
        if key is None or copies is None:
            return False
        if self._by_key[key] == block:
            self._by_key[key] = copies.pop()
        else:
            copies.remove(block)
        if not copies:
            del self.copies[key]
        self.keys[block] = None
        return True

    def remove(self, blocks: Iterable[int]) -> None:
        """Forget the content of blocks that alone hold it: they are about to be reused."""
        keys, by_key = self.keys, self._by_key
        for block in blocks:
            key = keys[block]
            assert key is not None, "an evictable block holds nothing"
            del by_key[key]
            keys[block] = None

    def parent_holder(self, block: int) -> int | None:
        """The block that is handed out for the content before a block's own; None: none is."""
        parent = self._parents[block]
        return None if parent is None else self._by_key.get(parent)

    def is_handed_out(self, block: int) -> bool:
        """Whether the block is the one that others get for its content."""
        key = self.keys[block]
        return key is not None and self._by_key.get(key) == block

    def has_copies(self, block: int) -> bool:
        """Whether other blocks hold the same."""
        return self.keys[block] in self.copies

    def check_integrity(self) -> None:
        """Raise `AllocatorError` unless map, blocks and chains agree."""
        num_registered = 0
        for key, block in self._by_key.items():
            holders = {block, *self.copies.get(key, ())}
            num_registered += len(holders)
            if any(self.keys[other] != key for other in holders):
                raise AllocatorError(f"blocks {holders} do not hold what the map says")
            for other in holders:
                self._check_block(other, key)
        if num_registered != sum(key is not None for key in self.keys):
            raise AllocatorError("a block holds content that the map does not know")
        if not all(self.copies.values()) or self.copies.keys() - self._by_key.keys():
            raise AllocatorError("copies are kept of content that no block is handed out for")
        if not all(chain.is_sound() for chain in self._chains.values()):
            raise AllocatorError("the hashes that are remembered of a prompt are not its own")

    def _check_block(self, block: int, key: int) -> None:
        parent = self._parents[block]
        if key != self._hash_block(self._tokens[block].tobytes(), seed(parent)):
            raise AllocatorError(f"block {block} is registered under a wrong hash")
        if parent is not None and parent >= 0 and parent not in self._by_key:
            raise AllocatorError(f"block {block} follows content that was removed")


def _outdated(block: int) -> AllocatorError:
    return AllocatorError(
        f"block {block} of the match does not hold these tokens (any more): "
        "match again after every change of the allocator"
    )
