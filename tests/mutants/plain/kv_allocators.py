"""An allocator without a fault."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from nanofw.errors import AllocatorError
from nanofw.plugins import (
    Allocation,
    AllocatorStats,
    Extension,
    KVAllocator,
    Match,
)


class Plain(KVAllocator):
    """Tables in dictionaries; a block is known by all tokens up to its end, without any hash."""

    def __init__(self, options, config) -> None:
        self.config, self.size = config, config.block_size
        self.tables: dict[int, list[int]] = {}
        self.salts: dict[int, int] = {}
        self.num_known: Counter[int] = Counter()  # blocks of a row that were committed
        self.reset()

    def reset(self) -> None:
        self.free = list(range(self.config.num_blocks))
        self.known: dict[Hashable, int] = {}
        self.content: dict[int, Hashable] = {}
        self.refs: Counter[int] = Counter()
        self.idle: OrderedDict[int, None] = OrderedDict()  # cached without owner, oldest first
        self.hits = self.evictions = self.duplicates = 0

    @property
    def num_available(self) -> int:
        return len(self.free) + len(self.idle)

    def contents(self, tokens, salt) -> Iterator[Hashable]:
        """What each full block of the tokens is known by."""
        for end in range(self.size, len(tokens) + 1, self.size):
            yield salt, np.asarray(tokens[:end], np.int32).tobytes()

    def match(self, token_ids, salt=0) -> Match:
        blocks: list[int] = []
        for content in self.contents(token_ids, salt):
            if content not in self.known:
                break
            blocks.append(self.known[content])
        return Match(len(blocks) * self.size, np.array(blocks, np.int32))

    def acquire(self, row, token_ids, match, salt=0) -> Allocation | None:
        shared: list[int] = [] if match is None else match.block_ids.tolist()
        needed = self.blocks_for(len(token_ids)) - len(shared)
        if needed > self.num_available - sum(block in self.idle for block in shared):
            return None
        self.share(shared)
        self.hits += len(shared)
        self.tables[row], self.salts[row] = shared + self.take(needed), salt
        self.num_known[row] = len(shared)
        return Allocation(self.ids(self.tables[row]))

    def share(self, blocks) -> None:
        for block in blocks:
            self.idle.pop(block, None)
            self.refs[block] += 1

    def blocks_for(self, num_tokens) -> int:
        return -(-num_tokens // self.size)

    def ids(self, blocks) -> Any:
        return np.array(blocks, np.int32)

    def take(self, count) -> list[int]:
        while len(self.free) < count:
            self.evict()
        taken = [self.free.pop() for _ in range(count)]
        for block in taken:
            self.refs[block] = 1
        return taken

    def evict(self) -> None:
        block, _ = self.idle.popitem(last=False)
        self.forget(block)
        self.free.append(block)
        self.evictions += 1

    def forget(self, block) -> None:
        del self.known[self.content.pop(block)]

    def extend(self, rows, num_tokens) -> Extension | None:
        wanted = [
            (row, place)
            for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True)
            for place in range(len(self.tables[row]), self.blocks_for(count))
        ]
        if len(wanted) > self.num_available:
            return None
        blocks = self.take(len(wanted))
        for (row, _), block in zip(wanted, blocks, strict=True):
            self.tables[row].append(block)
        return Extension(
            self.ids([row for row, _ in wanted]),
            self.ids([place for _, place in wanted]),
            self.ids(blocks),
        )

    def commit(self, rows, num_tokens, tokens) -> None:
        for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            contents = list(self.contents(tokens[row, :count], self.salts[row]))
            for place in range(self.num_known[row], len(contents)):
                self.register(self.tables[row][place], contents[place])
            self.num_known[row] = max(self.num_known[row], len(contents))

    def register(self, block, content) -> None:
        if self.known.setdefault(content, block) == block:
            self.content[block] = content
        else:
            self.duplicates += 1

    def release(self, row) -> None:
        for block in reversed(self.tables.pop(row, [])):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.let_go(block)

    def let_go(self, block) -> None:
        if block in self.content:
            self.idle[block] = None
        else:
            self.free.append(block)

    def stats(self) -> AllocatorStats:
        total = self.config.num_blocks
        return AllocatorStats(
            num_blocks=total,
            num_free=len(self.free),
            num_cached=len(self.idle),
            num_used=total - self.num_available,
            num_hits=self.hits,
            num_evictions=self.evictions,
            num_duplicates=self.duplicates,
        )

    def check_integrity(self) -> None:
        owners = Counter(block for table in self.tables.values() for block in table)
        if owners != +self.refs or len(owners) + self.num_available != self.config.num_blocks:
            raise AllocatorError("owners, free and cached blocks do not add up")
