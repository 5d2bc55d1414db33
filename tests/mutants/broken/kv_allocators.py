"""Allocators that are wrong."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import (
    Allocation,
    Extension,
    Match,
    Plugin,
    hookimpl,
)
from tests.mutants.collection import Collection
from tests.mutants.plain.kv_allocators import Plain

sample = Collection("kv_allocator/2", {"block_sizes": ("*",), "prefix_cache": True})


@hookimpl
def kv_allocator() -> list[Plugin]:
    return sample.plugins()


@sample()
class LosesTheLastBlock(Plain):
    """A release forgets the last block of the row, which is never used again."""

    def release(self, row) -> None:
        self.tables.get(row, [0]).pop()
        super().release(row)


@sample(prefix_cache=False)
class GivesBackTwice(PagedAllocator):
    """A second release of a row gives its blocks back again, though others may have them by now."""

    def release(self, row) -> None:
        count = int(self._num_row_blocks[row])
        super().release(row)
        self._num_row_blocks[row] = count

    def _check_empty(self, row) -> None:
        self._num_row_blocks[row] = 0


@sample()
class OneBlockTooMany(Plain):
    """Tokens that fill their blocks are given one block more."""

    def blocks_for(self, num_tokens) -> int:
        return num_tokens // self.size + 1


@sample()
class OneBlockTooFew(Plain):
    """The block that is begun and not full is not counted."""

    def blocks_for(self, num_tokens) -> int:
        return max(1, num_tokens // self.size)


@sample(prefix_cache=False)
class HalfAnExtension(PagedAllocator):
    """Rows are extended one after the other, and those before the one without room stay so."""

    def extend(self, rows, num_tokens):
        if not len(rows):
            return super().extend(rows, num_tokens)
        parts = []
        for i in range(len(rows)):
            part = super().extend(rows[i : i + 1], num_tokens[i : i + 1])
            if part is None:
                return None
            parts.append(part)
        names = ("rows", "positions", "block_ids")
        return Extension(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


@sample()
class SaltsIgnored(Plain):
    """Prompts of different salts share blocks, so that one owner reads the KV of another."""

    def contents(self, tokens, salt):
        return super().contents(tokens, 0)


@sample()
class BlocksWithoutPast(Plain):
    """A block is known by its own tokens, whatever comes before them."""

    def contents(self, tokens, salt):
        for end in range(self.size, len(tokens) + 1, self.size):
            yield salt, end, np.asarray(tokens[end - self.size : end]).tobytes()


@sample()
class HashesBelieved(Plain):
    """Blocks are found by a sum of their tokens, which is never compared with the tokens."""

    def contents(self, tokens, salt):
        for end in range(self.size, len(tokens) + 1, self.size):
            yield salt, end, int(np.sum(tokens[:end]))


@sample()
class SharedBeforeComputed(Plain):
    """Blocks are known as soon as they are taken, before anything was written into them."""

    def acquire(self, row, token_ids, match, salt=0):
        allocation = super().acquire(row, token_ids, match, salt)
        if allocation is not None:
            rows, counts = np.array([0]), np.array([len(token_ids)])
            tables, self.tables = self.tables, {0: self.tables[row]}
            known, self.num_known = self.num_known, Counter({0: self.num_known[row]})
            salts, self.salts = self.salts, {0: salt}
            self.commit(rows, counts, token_ids[None])
            known[row] = self.num_known[0]
            self.tables, self.num_known, self.salts = tables, known, salts
        return allocation


@sample()
class CommitsTheBegun(Plain):
    """A block counts as full one token early, so that others read a slot that is not written."""

    def commit(self, rows, num_tokens, tokens) -> None:
        super().commit(rows, num_tokens + 1, tokens)


@sample()
class EvictsTheUsed(Plain):
    """When nothing is free, the oldest known block goes, also one that a row still reads."""

    @property
    def num_available(self) -> int:
        return len(self.free) + len(self.known)

    def evict(self) -> None:
        block = next(iter(self.content))
        self.idle.pop(block, None)
        self.forget(block)
        self.free.append(block)
        self.evictions += 1


@sample()
class RemembersReused(Plain):
    """What an evicted block held is still believed to be there when others have overwritten it."""

    def forget(self, block) -> None:
        self.content.pop(block)


@sample()
class FreesTheShared(Plain):
    """A release frees all blocks of the row, also those that other rows have."""

    def release(self, row) -> None:
        for block in self.tables.get(row, []):
            self.refs[block] = 1
        super().release(row)


@sample()
class MatchCounts(Plain):
    """`match` counts the hit, though it may be asked many times and must change nothing."""

    def match(self, token_ids, salt=0):
        match = super().match(token_ids, salt)
        self.hits += len(match.block_ids)
        return match


@sample()
class MatchKeepsAlive(Plain):
    """A match takes its blocks out of those that can be evicted: who only asks uses up the pool."""

    def match(self, token_ids, salt=0):
        match = super().match(token_ids, salt)
        for block in match.block_ids.tolist():
            self.idle.pop(block, None)
        return match


@sample()
class AvailableAreTheFree(Plain):
    """Cached blocks are not counted as available, so that a warm cache admits nobody."""

    @property
    def num_available(self) -> int:
        return len(self.free)


@sample()
class AvailableIsAll(Plain):
    """Blocks in use are counted as available, and a policy admits what has no room."""

    @property
    def num_available(self) -> int:
        return self.config.num_blocks

    def acquire(self, row, token_ids, match, salt=0):
        if self.blocks_for(len(token_ids)) > len(self.free) + len(self.idle):
            return None
        return super().acquire(row, token_ids, match, salt)

    def extend(self, rows, num_tokens):
        pairs = zip(rows.tolist(), num_tokens.tolist(), strict=True)
        needed = sum(max(0, self.blocks_for(n) - len(self.tables[row])) for row, n in pairs)
        if needed > len(self.free) + len(self.idle):
            return None
        return super().extend(rows, num_tokens)


@sample()
class ResetKeepsContent(Plain):
    """After a reset prompts still hit what was cached before."""

    def reset(self) -> None:
        if not hasattr(self, "known"):
            super().reset()


@sample()
class ResetKeepsCounters(PagedPrefixAllocator):
    """A reset forgets the content and goes on counting hits and evictions where it was."""

    def reset(self) -> None:
        counters = self._num_hits, self._num_evictions, self._num_duplicates
        super().reset()
        self._num_hits, self._num_evictions, self._num_duplicates = counters


@sample()
class WideIds(Plain):
    """Block ids are int64, where plans and kernels have int32."""

    def ids(self, blocks):
        return np.array(blocks, np.int64)


@sample()
class KeepsTheTokens(Plain):
    """It keeps the array of tokens and reads it later, when there may be others in it."""

    def commit(self, rows, num_tokens, tokens) -> None:
        late, self.late = getattr(self, "late", None), (rows, num_tokens, tokens)
        if late is not None:
            there = np.array([row in self.tables for row in late[0].tolist()], bool)
            super().commit(late[0][there], late[1][there], late[2])


@sample(prefix_cache=False)
class OnePoolForAll(PagedAllocator):
    """Free blocks are kept on the class: two engines of a process take them from each other."""

    stack: ClassVar[Any] = None

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        type(self).stack = self._free = self.stack or self._free


@sample()
class PlacesFromNought(Plain):
    """The places of appended blocks begin at 0 instead of behind those that the row has."""

    def extend(self, rows, num_tokens):
        extension = super().extend(rows, num_tokens)
        if extension is None:
            return None
        places = self.ids(range(len(extension.rows)))
        return Extension(extension.rows, places, extension.block_ids)


@sample()
class OldCounts(Plain):
    """The number of cached tokens of a prompt is remembered for ever, also when they are gone."""

    def num_cached_tokens(self, token_ids, salt=0) -> int:
        counts = vars(self).setdefault("counts", {})
        key = salt, token_ids.tobytes()
        if key not in counts:
            counts[key] = super().num_cached_tokens(token_ids, salt)
        return counts[key]


@sample()
class UnseededBlocks(Plain):
    """The free blocks are shuffled by random numbers that nobody can have again."""

    def take(self, count):
        random.shuffle(self.free)
        return super().take(count)


@sample()
class ResetGoesOn(Plain):
    """The free blocks are shuffled from a seed, and a reset goes on with its numbers."""

    def __init__(self, options, config) -> None:
        self.random = random.Random(0)
        super().__init__(options, config)

    def take(self, count):
        self.random.shuffle(self.free)
        return super().take(count)


@sample()
class LastBlockUnused(Plain):
    """The last block of the pool is never given out, and counts as used with no row in sight."""

    def reset(self) -> None:
        super().reset()
        self.free.pop()

    def check_integrity(self) -> None:
        pass


@sample()
class NeverHits(Plain):
    """It claims a prefix cache, and finds nothing in it."""

    def match(self, token_ids, salt=0):
        return Match(0, self.ids([]))


@sample()
class FirstTwice(Plain):
    """A row of several blocks has its first one twice, so that its end overwrites its beginning."""

    def take(self, count):
        taken = super().take(count)
        if count > 2:
            self.free.append(taken.pop())
            taken.append(taken[0])
        return taken

    def check_integrity(self) -> None:
        pass


@sample()
class CopiesWhatItFinds(Plain):
    """A cached prefix is copied, and the table does not begin with the blocks of the match."""

    def acquire(self, row, token_ids, match, salt=0):
        found: list[int] = [] if match is None else match.block_ids.tolist()
        if self.blocks_for(len(token_ids)) > self.num_available - sum(
            b in self.idle for b in found
        ):
            return None
        self.share(found)  # so that none of them is evicted for the copy of another
        table = self.take(self.blocks_for(len(token_ids)))
        self.tables[row], self.salts[row] = table, salt
        self.num_known[row] = len(found)
        for block in reversed(found):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.let_go(block)
        self.hits += len(found)
        copies = np.array(list(zip(found, table, strict=False)), np.int32).reshape(-1, 2)
        return Allocation(self.ids(table), copies)
