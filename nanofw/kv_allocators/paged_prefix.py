"""`paged_prefix`: equal prefixes are computed once and kept until room is short."""

from __future__ import annotations

import numpy as np
import xxhash

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.kv_allocator import (
    NO_MATCH,
    Allocation,
    AllocatorConfig,
    AllocatorStats,
    Match,
)
from nanofw.errors import AllocatorError
from nanofw.kv_allocators.block_tables import BlockTables, flatten
from nanofw.kv_allocators.eviction_queue import EvictionQueue
from nanofw.kv_allocators.prefix_index import UNKNOWN, BlockHash, ContentKey, PrefixIndex, root

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

    works_by_block = True

    def __init__(
        self,
        options: None,
        config: AllocatorConfig,
        hash_block: BlockHash = xxhash.xxh3_64_intdigest,
    ) -> None:
        super().__init__(config)
        self._hash_block = hash_block
        self._tips: list[ContentKey] = [None] * config.max_num_seqs  # content of the last known
        self._num_known = np.zeros(config.max_num_seqs, np.int32)  # blocks known by content
        self._due = np.full(config.max_num_seqs, NEVER, np.int32)  # tokens that fill the next
        self._clear()

    @property
    def num_available(self) -> int:
        """Free and cached blocks."""
        return len(self._free) + len(self._lru)

    def match(self, token_ids: IntArray, salt: int = 0) -> Match:
        """See the contract. One probe of the index per full block."""
        blocks = self._index.find(token_ids, salt)
        if not blocks:
            return NO_MATCH
        return Match(len(blocks) * self._block_size, np.array(blocks, np.int32))

    def num_cached_tokens(self, token_ids: IntArray, salt: int = 0) -> int:
        """As long as `match`, by the hashes alone; for a prompt that was asked for before, two
        probes of the index unless its blocks came or went."""
        return self._index.depth(token_ids, salt) * self._block_size

    def acquire(
        self, row: int, token_ids: IntArray, match: Match | None, salt: int = 0
    ) -> Allocation | None:
        """See the contract. The match is compared with the tokens once more."""
        self._check_empty(row)
        needed = self._blocks_for(len(token_ids))
        self._check_width(needed)
        tip, shared = root(salt), EMPTY_INT
        if match is not None and len(match.block_ids):
            shared = match.block_ids
            tip = self._index.verify(token_ids, shared.tolist(), salt)
        # Cached blocks of the match are evictable, but not for this row.
        revived = shared[self._refs[shared] == 0] if len(shared) else EMPTY_INT
        if needed - len(shared) > self.num_available - len(revived):
            return None
        if len(revived):
            self._lru.remove(revived)
        blocks = self._take(needed - len(shared))
        if len(shared):
            self._refs[shared] += 1
            blocks = np.concatenate((shared, blocks))
        self._num_hits += len(shared)
        self._tips[row] = tip
        self._num_known[row] = len(shared)
        self._due[row] = (len(shared) + 1) * self._block_size
        return Allocation(self._fill(row, blocks))

    def commit(self, rows: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """See the contract. Only rows that filled a block are looked at one by one."""
        filled = (num_tokens >= self._due.take(rows)).nonzero()[0]
        if not len(filled):
            return
        rows = rows[filled]
        ends = num_tokens[filled] // self._block_size
        if (ends > self._num_row_blocks[rows]).any():
            raise AllocatorError("more tokens committed than the row has room for")
        starts = self._num_known[rows]
        self._num_known[rows] = ends
        self._due[rows] = (ends + 1) * self._block_size
        self._register(rows, starts, ends - starts, tokens)

    def release(self, row: int) -> None:
        """See the contract. The tail becomes evictable before the head."""
        table, num_known = self._table(row), int(self._num_known[row])
        refs = self._refs[table] - 1
        self._refs[table] = refs
        idle = table[:num_known][refs[:num_known] == 0][::-1]
        if self._index.copies:
            removed = [self._index.remove_copy(block) for block in idle.tolist()]
            is_copy = np.array(removed, np.bool_)
            self._free.give(idle[is_copy])
            idle = idle[~is_copy]
        self._free.give(table[num_known:][::-1])  # no other row can have those
        self._lru.append(idle)
        self._tips[row] = None
        self._num_known[row] = 0
        self._due[row] = NEVER
        self._set_count(row, 0)

    def reset(self) -> None:
        """See the contract."""
        if self._num_row_blocks.any():
            raise AllocatorError("reset while rows own blocks")
        self._clear()

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
        self._lru.check_integrity()
        if not np.array_equal(owners, self._refs):
            raise AllocatorError("reference counts differ from the tables")
        self._index.check_integrity()
        self._check_states(owners)
        self._check_eviction_order()

    def _clear(self) -> None:
        config = self._config
        self._free.refill()
        self._refs = np.zeros(config.num_blocks, np.int32)  # tables that list each block
        self._lru = EvictionQueue(config.num_blocks)
        self._index = PrefixIndex(config.num_blocks, config.block_size, self._hash_block)
        self._num_hits = self._num_evictions = self._num_duplicates = 0

    def _take(self, num_blocks: int) -> IntArray:
        num_free = len(self._free)
        blocks = self._free.take(min(num_blocks, num_free))
        if num_blocks > num_free:
            blocks = np.concatenate((blocks, self._evict(num_blocks - num_free)))
        self._refs[blocks] = 1
        return blocks

    def _evict(self, num_blocks: int) -> IntArray:
        """int32[num_blocks] cached blocks whose content is forgotten."""
        victims = self._lru.pop(num_blocks)
        self._index.remove(victims.tolist())
        self._num_evictions += num_blocks
        return victims

    def _register(
        self, rows: IntArray, starts: IntArray, counts: IntArray, tokens: IntArray
    ) -> None:
        """Make `counts[i]` blocks from `starts[i]` on of each row known by their content."""
        owners, positions = flatten(rows, starts, counts, sum(counts.tolist()))
        width, size = tokens.shape[1] // self._block_size, self._block_size
        by_block = tokens[:, : width * size].reshape(-1, width, size)  # a view
        blocks = self._tables[owners, positions]
        content = by_block[owners, positions]
        equal, unknown = self._index.add_blocks(self._tips, owners.tolist(), blocks, content)
        for block in equal:
            self._num_duplicates += 1
            self._supersede(block)
        for row in unknown:  # nor can anything that follows be known
            self._num_known[row] -= 1
            self._due[row] = NEVER

    def _supersede(self, block: int) -> None:
        """Free a cached block whose content a row has just computed again.

        For example, a prompt that is cached to its last token computes its last block again.
        """
        if block in self._lru:
            alone = np.array([block], np.int32)
            self._lru.remove(alone)
            self._index.remove_copy(block)
            self._free.give(alone)

    def _check_states(self, owners: IntArray) -> None:
        free, cached = set(self._free.ids().tolist()), set(self._lru.ids().tolist())
        used = set(owners.nonzero()[0].tolist())
        if len(free) + len(cached) + len(used) != self._config.num_blocks:
            raise AllocatorError("free, cached and used blocks do not add up to the pool")
        if free & cached or cached & used:
            raise AllocatorError(f"blocks {cached & (free | used)} are cached and something else")
        if any(self._index.keys[block] is not None for block in free):
            raise AllocatorError("a block is free, yet known by its content")
        for block in cached:
            if not self._index.is_handed_out(block) or self._index.has_copies(block):
                raise AllocatorError(f"block {block} is cached for content that it is not for")
        for row in range(self._config.max_num_seqs):
            self._check_known(row)

    def _check_known(self, row: int) -> None:
        table: list[int] = self._table(row).tolist()
        num_known = int(self._num_known[row])
        keys = [self._index.keys[block] for block in table]
        if not 0 <= num_known <= len(table):
            raise AllocatorError(f"row {row} has {len(table)} blocks, {num_known} of them known")
        if None in keys[:num_known] or any(key is not None for key in keys[num_known:]):
            raise AllocatorError(f"row {row} has other than {num_known} blocks known by content")
        tip = self._tips[row]
        is_root = not num_known and (tip is None or tip < UNKNOWN)
        if tip != UNKNOWN and not is_root and (not num_known or tip != keys[num_known - 1]):
            raise AllocatorError(f"the last content known of row {row} is another one")
        due = (num_known + 1) * self._block_size if table and tip != UNKNOWN else NEVER
        if self._due[row] != due:
            raise AllocatorError(
                f"row {row} waits for {self._due[row]} tokens to fill its next block, not {due}"
            )

    def _check_eviction_order(self) -> None:
        """A parent is in use or evicted after its child: no content outlives its head."""
        seen: set[int] = set()
        for block in self._lru.ids().tolist():
            if self._index.parent_holder(block) in seen:
                raise AllocatorError(f"block {block} would outlive the block before it")
            seen.add(block)
