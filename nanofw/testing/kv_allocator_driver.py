"""Drives an allocator as the scheduler does, over a memory that knows what was written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import (
    AllocatorConfig,
    AllocatorStats,
    KVAllocator,
    Match,
)

GARBAGE = -1


class KVAllocatorDriver:
    """One allocator, the tables that it gave, and a memory that stands for the KV.

    A slot of the memory holds the number of the exact token prefix whose keys and values it
    would hold; equal numbers mean equal prefixes. Every call is followed by the checks that
    hold at any time, so a broken rule is found at the call that breaks it.

    Attributes:
        tables: blocks of each row that is in use.
        tokens: token ids of each row that is in use.
        num_computed: tokens of each row whose KV was written and committed.
    """

    def __init__(self, allocator: KVAllocator, config: AllocatorConfig) -> None:
        self.allocator = allocator
        self.config = config
        self.block_size = config.block_size
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, IntArray] = {}
        self.num_computed: dict[int, int] = {}
        self._memory = np.full((config.num_blocks, config.block_size), GARBAGE, np.int64)
        self._prefixes: dict[tuple[int, int], int] = {}
        self.check()

    def admit(self, row: int, tokens: IntArray) -> bool:
        """Match and acquire; whether there was room."""
        match = self.match(tokens[:-1])
        before = self._snapshot(tokens)
        allocation = self.allocator.acquire(row, tokens, match)
        needed = -(-len(tokens) // self.block_size)
        if allocation is None:
            assert needed > before[0], f"{needed} of {before[0]} blocks were refused"
            assert self._snapshot(tokens) == before, "a refused acquire changed something"
            self.check()
            return False
        blocks = [int(block) for block in allocation.block_ids]
        assert len(blocks) == needed, f"{len(blocks)} blocks for {len(tokens)} tokens"
        shared = len(match.block_ids)
        assert blocks[:shared] == match.block_ids.tolist(), "the match is not what was acquired"
        self._check_private(blocks[shared:])
        self.tables[row] = blocks
        self.tokens[row] = tokens
        self.num_computed[row] = match.num_tokens
        self.check()
        return True

    def match(self, tokens: IntArray) -> Match:
        """Match, and check that what it names is what the tokens need."""
        before = self._counts()
        match = self.allocator.match(tokens)
        assert match.num_tokens % self.block_size == 0, "a match ends within a block"
        assert match.num_tokens <= len(tokens), "a match is longer than the tokens"
        assert len(match.block_ids) * self.block_size == match.num_tokens
        written = self._memory[match.block_ids].ravel()
        expected = self._numbers(tokens[: match.num_tokens])
        assert np.array_equal(written, expected), "the match names blocks with foreign content"
        again = self.allocator.match(tokens)
        assert again.block_ids.tolist() == match.block_ids.tolist(), "match changed the match"
        assert self._counts() == before, "match changed something"
        return match

    def compute(self, rows: Sequence[int], failed: Sequence[int] = ()) -> None:
        """Write the KV of all tokens that the rows have room for, and commit it."""
        for row in rows:
            self._write(row, len(self.tokens[row]), spoiled=row in failed)
        sound = [row for row in rows if row not in failed]
        for row in sound:
            self.num_computed[row] = len(self.tokens[row])
        self._commit(sound)

    def step(self, rows: Sequence[int], num_new: Sequence[int], failed: Sequence[int] = ()) -> bool:
        """Extend the rows by new tokens, compute and commit; whether there was room."""
        lengths = [len(self.tokens[row]) + new for row, new in zip(rows, num_new, strict=True)]
        needed = sum(
            max(0, -(-length // self.block_size) - len(self.tables[row]))
            for row, length in zip(rows, lengths, strict=True)
        )
        before = self._snapshot(self.tokens[rows[0]])
        extension = self.allocator.extend(np.array(rows, np.int32), np.array(lengths, np.int32))
        if extension is None:
            assert needed > before[0], f"{needed} of {before[0]} blocks were refused"
            assert self._snapshot(self.tokens[rows[0]]) == before, "a refused extend changed tables"
            self.check()
            return False
        assert len(extension.block_ids) >= needed, "fewer blocks than the tokens need"
        self._check_private(extension.block_ids.tolist())
        for source, target in extension.copies.tolist():
            self._memory[target] = self._memory[source]
        for row, position, block in zip(
            extension.rows.tolist(),
            extension.positions.tolist(),
            extension.block_ids.tolist(),
            strict=True,
        ):
            table = self.tables[row]
            assert position <= len(table), f"row {row}: a hole in the table before {position}"
            table[position : position + 1] = [block]
        for row, length in zip(rows, lengths, strict=True):
            known = self.tokens[row]
            new = np.arange(len(known), length, dtype=np.int32) * 7 % 3
            self.tokens[row] = np.concatenate((known, new))
            assert len(self.tables[row]) * self.block_size >= length, f"row {row} has no room"
        self.check()
        self.compute(rows, failed)
        return True

    def release(self, row: int) -> None:
        """Release a row, in use or not."""
        self.allocator.release(row)
        for of_row in (self.tables, self.tokens, self.num_computed):
            of_row.pop(row, None)
        self.check()

    def reset(self) -> None:
        """Reset; no row may be in use."""
        assert not self.tables
        self.allocator.reset()
        stats = self.allocator.stats()
        assert stats == AllocatorStats(
            num_blocks=self.config.num_blocks,
            num_free=self.config.num_blocks,
            num_cached=0,
            num_used=0,
        ), f"a reset leaves {stats}"
        self.check()

    def check(self) -> None:
        """What holds after every call."""
        self.allocator.check_integrity()
        stats = self.allocator.stats()
        used = {block for table in self.tables.values() for block in table}
        assert stats.num_blocks == self.config.num_blocks
        assert stats.num_used == len(used), f"{len(used)} blocks are in tables: {stats}"
        assert stats.num_free + stats.num_cached + stats.num_used == stats.num_blocks, stats
        assert self.allocator.num_available <= stats.num_free + stats.num_cached, stats
        if not used:
            assert self.allocator.num_available == stats.num_blocks, "blocks were lost"
        for row, table in self.tables.items():
            done = self.num_computed[row]
            kept = self._memory[table].ravel()[:done]
            assert np.array_equal(kept, self._numbers(self.tokens[row][:done])), (
                f"the KV of row {row} was overwritten"
            )

    def _write(self, row: int, end: int, *, spoiled: bool) -> None:
        numbers = self._numbers(self.tokens[row])
        others = {b for other, table in self.tables.items() if other != row for b in table}
        for position in range(self.num_computed[row], end):
            block = self.tables[row][position // self.block_size]
            assert block not in others, f"row {row} writes into block {block} of another row"
            value = GARBAGE if spoiled else numbers[position]
            self._memory[block, position % self.block_size] = value

    def _commit(self, rows: Sequence[int]) -> None:
        longest = max((len(tokens) for tokens in self.tokens.values()), default=0)
        matrix = np.zeros((self.config.max_num_seqs, longest), np.int32)
        for row, tokens in self.tokens.items():
            matrix[row, : len(tokens)] = tokens
        lengths = np.array([self.num_computed[row] for row in rows], np.int32)
        self.allocator.commit(np.array(rows, np.int32), lengths, matrix)
        matrix[:] = GARBAGE  # it was to be read, not kept
        self.check()

    def _check_private(self, blocks: list[int]) -> None:
        owned = {block for table in self.tables.values() for block in table}
        assert len(set(blocks)) == len(blocks), f"a block was given twice: {blocks}"
        assert not owned & set(blocks), f"blocks {owned & set(blocks)} belong to other rows"

    def _numbers(self, tokens: IntArray) -> list[int]:
        """For each token the number of the prefix that ends with it."""
        numbers, parent = [], 0
        for token in tokens.tolist():
            parent = self._prefixes.setdefault((parent, token), len(self._prefixes) + 1)
            numbers.append(parent)
        return numbers

    def _counts(self) -> tuple[int, AllocatorStats]:
        return self.allocator.num_available, self.allocator.stats()

    def _snapshot(self, tokens: IntArray) -> tuple[int, AllocatorStats, list[int]]:
        return *self._counts(), self.allocator.match(tokens).block_ids.tolist()


def random_walk(driver: KVAllocatorDriver, generator: np.random.Generator, num_calls: int) -> None:
    """Random admissions, steps and releases; few token values, so that prefixes are shared."""
    config, size = driver.config, driver.block_size
    longest = config.max_blocks_per_row * size
    for _ in range(num_calls):
        row = int(generator.integers(config.max_num_seqs))
        roll = generator.random()
        if row not in driver.tables and roll < 0.8:
            # Heads of few kinds, tails of many: what system prompts look like.
            head = np.full(int(generator.integers(0, 3)) * size, generator.integers(2))
            tail = generator.integers(0, 2, int(generator.integers(1, 2 * size + 2)))
            tokens = np.concatenate((head, tail)).astype(np.int32)[:longest]
            if driver.admit(row, tokens) and generator.random() < 0.9:
                driver.compute([row])
        elif driver.tables and roll < 0.85:
            rows = sorted(driver.tables)
            generator.shuffle(rows)
            rows = rows[: int(generator.integers(1, len(rows) + 1))]
            rows = [r for r in rows if len(driver.tokens[r]) < longest]
            new = [
                int(generator.integers(1, 1 + min(2 * size, longest - len(driver.tokens[r]))))
                for r in rows
            ]
            failed = [r for r in rows if generator.random() < 0.05]
            if rows and driver.step(rows, new, failed):
                for r in failed:
                    driver.release(r)
        else:
            driver.release(row)
    for row in list(driver.tables):
        driver.release(row)
    driver.reset()
