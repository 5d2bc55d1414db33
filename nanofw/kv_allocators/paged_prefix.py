"""`paged_prefix`: equal prefixes are computed once and kept until room is short."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import xxhash

from nanofw.core.contracts.kv_allocator import AllocatorConfig, AllocatorStats, Match
from nanofw.core.plan import EMPTY_INT
from nanofw.core.types import IntArray
from nanofw.errors import AllocatorError
from nanofw.kv_allocators.block_tables import BlockTables, flatten
from nanofw.kv_allocators.prefix_index import BlockHash, Prefix, PrefixIndex

NEVER = np.iinfo(np.int32).max


class PagedPrefixAllocator(BlockTables):
    """Blocks with reference counts, an index of their content, and an LRU list.

    A block is free, cached (in the LRU list: registered content, no owner) or used. A full
    block is registered when its row commits it. Rows that compute equal content side by side
    each keep their block: the first to commit is handed out to others, the later ones are
    counted as duplicates and freed with their row. A duplicate takes over when the first goes
    before it, so a cached block is always the only one of its content. A block whose hash belongs
    to other content is not shared, nor is what follows it.

    Args:
        hash_block: chained hash of a block; only tests give another.
    """

    def __init__(
        self,
        options: None,
        config: AllocatorConfig,
        hash_block: BlockHash = xxhash.xxh3_64_intdigest,
    ) -> None:
        super().__init__(config)
        self._hash_block = hash_block
        self._tips: list[Prefix | None] = [None] * config.max_num_seqs  # last registered
        self._due = np.full(config.max_num_seqs, NEVER, np.int32)  # tokens that fill the next
        self._forget()

    @property
    def num_available(self) -> int:
        """Free and cached blocks."""
        return len(self._free) + len(self._lru)

    @property
    def num_known_prefixes(self) -> int:
        """Entries of the hash map; never more than there are blocks."""
        return len(self._index)

    def match(self, token_ids: IntArray) -> Match:
        """See the contract. One probe of the index per full block."""
        blocks = self._index.find(token_ids)
        return Match(len(blocks) * self._block_size, np.array(blocks, np.int32))

    def acquire(self, row: int, token_ids: IntArray, match: Match | None) -> IntArray | None:
        """See the contract. The match is compared with the tokens once more."""
        self._check_empty(row)
        needed = self._blocks_for(len(token_ids))
        self._check_width(needed)
        shared = match.block_ids if match is not None else EMPTY_INT
        tip = self._index.verify(token_ids, shared.tolist())
        # Cached blocks of the match are evictable, but not for this row.
        revived = shared[self._refs[shared] == 0].tolist()
        if needed - len(shared) > self.num_available - len(revived):
            return None
        for block in revived:
            del self._lru[block]
        self._refs[shared] += 1
        self._num_hits += len(shared)
        self._tips[row] = tip
        self._due[row] = (len(shared) + 1) * self._block_size
        return self._fill(row, np.concatenate((shared, self._take(needed - len(shared)))))

    def commit(self, rows: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """See the contract. Only rows that filled a block are looked at one by one."""
        filled = (num_tokens >= self._due.take(rows)).nonzero()[0]
        if not len(filled):
            return
        rows = rows[filled]
        ends = num_tokens[filled] // self._block_size
        if (ends > self._num_row_blocks[rows]).any():
            raise AllocatorError("more tokens committed than the row has room for")
        starts = self._due[rows] // self._block_size - 1
        self._due[rows] = (ends + 1) * self._block_size
        counts = ends - starts
        rows, positions = flatten(rows, starts, counts, int(counts.sum()))
        self._register(rows, positions, tokens)

    def release(self, row: int) -> None:
        """See the contract. The tail becomes evictable before the head."""
        table = self._table(row)
        self._refs[table] -= 1
        freed: list[int] = []
        for block in table[self._refs[table] == 0][::-1].tolist():
            if self._index.remove_copy(block):
                freed.append(block)
            else:
                self._lru[block] = None
        self._free.give(np.array(freed, np.int32))
        self._tips[row] = None
        self._due[row] = NEVER
        self._set_count(row, 0)

    def reset(self) -> None:
        """See the contract."""
        if self._num_row_blocks.any():
            raise AllocatorError("reset while rows own blocks")
        self._forget()

    def stats(self) -> AllocatorStats:
        """See the contract."""
        total, free, cached = self._config.num_blocks, len(self._free), len(self._lru)
        return AllocatorStats(
            num_blocks=total,
            num_free=free,
            num_cached=cached,
            num_used=total - free - cached,
            num_hits=self._num_hits,
            num_evictions=self._num_evictions,
            num_duplicates=self._num_duplicates,
        )

    def check_integrity(self) -> None:
        """See the contract; also compares reference counts, LRU list and index."""
        owners = self._owners()
        self._check_free(owners)
        if not np.array_equal(owners, self._refs):
            raise AllocatorError("reference counts differ from the tables")
        self._index.check()
        self._check_states(owners)
        self._check_eviction_order()

    def _forget(self) -> None:
        config = self._config
        self._free.refill()
        self._refs = np.zeros(config.num_blocks, np.int32)  # tables that list each block
        self._lru: OrderedDict[int, None] = OrderedDict()  # cached blocks, next victim first
        self._index = PrefixIndex(config.num_blocks, config.block_size, self._hash_block)
        self._num_hits = self._num_evictions = self._num_duplicates = 0

    def _take(self, num_blocks: int) -> IntArray:
        num_evicted = num_blocks - len(self._free)
        if num_evicted > 0:
            self._evict(num_evicted)
        blocks = self._free.take(num_blocks)
        self._refs[blocks] = 1
        return blocks

    def _evict(self, num_blocks: int) -> None:
        victims = [self._lru.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in victims:
            self._index.remove(block)
        self._free.give(np.array(victims, np.int32))
        self._num_evictions += num_blocks

    def _register(self, rows: IntArray, positions: IntArray, tokens: IntArray) -> None:
        """Make the blocks at `positions` of the rows' tables known by their content."""
        blocks = self._tables[rows, positions].tolist()
        columns = positions[:, None] * self._block_size + np.arange(self._block_size)
        chunks = self._index.chunks(tokens[rows[:, None], columns])
        owners: list[int] = rows.tolist()
        for row, position, block, chunk in zip(
            owners, positions.tolist(), blocks, chunks, strict=True
        ):
            parent = self._tips[row]
            if position and parent is None:
                continue  # it follows a block that could not be registered
            self._tips[row] = prefix = self._index.add(block, parent, chunk)
            if prefix is None:
                self._due[row] = NEVER
            elif prefix.block != block:
                self._num_duplicates += 1
                self._supersede(prefix.block)

    def _supersede(self, block: int) -> None:
        """Free a cached block whose content a row has just computed again.

        A prompt that is cached to its last token computes its last block anew, say.
        """
        if not self._refs[block]:
            del self._lru[block]
            self._index.remove_copy(block)
            self._free.give(np.array([block], np.int32))

    def _check_states(self, owners: IntArray) -> None:
        free, cached = set(self._free.ids().tolist()), set(self._lru)
        used = set(owners.nonzero()[0].tolist())
        if len(free) + len(cached) + len(used) != self._config.num_blocks:
            raise AllocatorError("free, cached and used blocks do not add up to the pool")
        if free & cached or cached & used:
            raise AllocatorError(f"blocks {cached & (free | used)} are cached and something else")
        for block in free:
            if self._index.of_block[block] is not None:
                raise AllocatorError(f"block {block} is free, yet known by its content")
        for block in cached:
            prefix = self._index.of_block[block]
            if prefix is None or prefix.block != block or prefix.copies:
                raise AllocatorError(f"block {block} is cached for content that it is not for")

    def _check_eviction_order(self) -> None:
        """A parent is in use or evicted after its child: no content outlives its head."""
        seen: set[int] = set()
        for block in self._lru:
            prefix = self._index.of_block[block]
            if prefix is not None and prefix.parent is not None and prefix.parent.block in seen:
                raise AllocatorError(f"block {block} would outlive the block before it")
            seen.add(block)
