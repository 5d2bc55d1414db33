"""Drives an allocator as the scheduler does, over a memory that knows what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import (
    AllocatorConfig,
    AllocatorStats,
    KVAllocator,
    Match,
)

GARBAGE = -1
_Snapshot: TypeAlias = tuple[int, AllocatorStats, list[int]]
"""Available blocks, counts, and the match of some tokens."""


class KVAllocatorDriver:
    """One allocator, the tables that it gave, and a memory that stands for the KV.

    A slot of the memory holds the number of the exact token prefix whose keys and values it
    would hold; equal numbers mean equal prefixes. Every call is followed by the checks that
    hold at any time, so a broken rule is found at the call that breaks it.

    Attributes:
        tables: blocks of each row that is in use.
        tokens: token ids of each row that is in use.
        salts: what keeps the prefixes of each row that is in use apart from others.
        num_computed: tokens of each row whose KV was written and committed.
        given: blocks of every answer of `acquire` and `extend` that gave some.
    """

    def __init__(self, allocator: KVAllocator, config: AllocatorConfig) -> None:
        self.allocator = allocator
        self.config = config
        self.block_size: int = config.block_size
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, IntArray] = {}
        self.salts: dict[int, int] = {}
        self.num_computed: dict[int, int] = {}
        self.given: list[list[int]] = []
        self._memory = np.full((config.num_blocks, config.block_size), GARBAGE, np.int64)
        self._prefixes: dict[tuple[int, int], int] = {}
        self._num_hits = 0
        self.check()

    def admit(self, row: int, tokens: IntArray, salt: int = 0) -> bool:
        """Match and acquire; whether there was room."""
        match = self.match(tokens[:-1], salt)
        before = self._snapshot(tokens, salt)
        allocation = self.allocator.acquire(row, tokens, match, salt)
        needed = -(-len(tokens) // self.block_size)
        if allocation is None:
            self._check_refusal("acquire", needed, before, self._snapshot(tokens, salt))
            return False
        blocks = checked_array("acquire", "block_ids", allocation.block_ids).tolist()
        assert len(blocks) == needed, (
            f"acquire gave {len(blocks)} blocks of {self.block_size} for {len(tokens)} tokens: "
            f"{blocks}"
        )
        shared = match.block_ids.tolist()
        assert blocks[: len(shared)] == shared, (
            f"acquire gave the table {blocks}, which does not begin with the match {shared}"
        )
        self._check_private(blocks[len(shared) :])
        self._copy_blocks("acquire", allocation.copies)
        self.given.append(blocks)
        self.tables[row], self.tokens[row], self.salts[row] = blocks, tokens, salt
        self.num_computed[row] = match.num_tokens
        self._num_hits += len(shared)
        self.check()
        return True

    def match(self, tokens: IntArray, salt: int = 0) -> Match:
        """Match, and check that what it names is what the tokens need."""
        before = self._counts()
        match = self.allocator.match(tokens, salt)
        blocks = checked_array("match", "block_ids", match.block_ids).tolist()
        num = match.num_tokens
        assert num == len(blocks) * self.block_size, (
            f"match found {num} tokens in {len(blocks)} blocks of {self.block_size}"
        )
        assert num <= len(tokens), f"match found {num} tokens of {len(tokens)}"
        written = self._memory[match.block_ids].ravel()
        expected = self._numbers(tokens[:num], salt)
        assert np.array_equal(written, expected), (
            f"match names blocks {blocks} for {num} tokens under the salt {salt}, and their "
            f"content is that of other tokens from position {_first_difference(written, expected)}"
        )
        again = self.allocator.match(tokens, salt).block_ids.tolist()
        assert again == blocks, f"match named {blocks}, and {again} when it was asked again"
        count = self.allocator.num_cached_tokens(tokens, salt)
        assert count == num, f"num_cached_tokens says {count} where match finds {num}"
        now = self._counts()
        assert now == before, f"match changed {before} to {now}"
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
        first = rows[0]
        before = self._snapshot(self.tokens[first], self.salts[first])
        extension = self.allocator.extend(np.array(rows, np.int32), np.array(lengths, np.int32))
        if extension is None:
            after = self._snapshot(self.tokens[first], self.salts[first])
            self._check_refusal("extend", needed, before, after)
            return False
        for name in ("rows", "positions", "block_ids"):
            checked_array("extend", name, getattr(extension, name))
        num = len(extension.block_ids)
        assert num >= needed, f"extend gave {num} blocks where the tokens need {needed}"
        self._check_private(extension.block_ids.tolist())
        self._copy_blocks("extend", extension.copies)
        self.given.append(extension.block_ids.tolist())
        for row, position, block in zip(
            extension.rows.tolist(),
            extension.positions.tolist(),
            extension.block_ids.tolist(),
            strict=True,
        ):
            table = self.tables[row]
            assert position <= len(table), (
                f"extend put block {block} at position {position} of row {row}, whose table has "
                f"{len(table)} blocks"
            )
            table[position : position + 1] = [block]
        for row, length in zip(rows, lengths, strict=True):
            known = self.tokens[row]
            new = np.arange(len(known), length, dtype=np.int32) * 7 % 3
            self.tokens[row] = np.concatenate((known, new))
            room = len(self.tables[row]) * self.block_size
            assert room >= length, f"row {row} has room for {room} tokens and needs {length}"
        self.check()
        self.compute(rows, failed)
        return True

    def release(self, row: int) -> None:
        """Release a row, in use or not."""
        self.allocator.release(row)
        for of_row in (self.tables, self.tokens, self.salts, self.num_computed):
            of_row.pop(row, None)
        self.check()

    def reset(self) -> None:
        """Reset; no row may be in use."""
        assert not self.tables, f"rows {sorted(self.tables)} are in use"
        self.allocator.reset()
        self._num_hits = 0
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
        assert stats.num_blocks == self.config.num_blocks, (
            f"the pool has {self.config.num_blocks} blocks: {stats}"
        )
        assert stats.num_hits == self._num_hits, (
            f"acquire took {self._num_hits} blocks from matches since the last reset: {stats}"
        )
        assert stats.num_used == len(used), f"{len(used)} blocks are in tables: {stats}"
        found = stats.num_free + stats.num_cached + stats.num_used
        assert found == stats.num_blocks, f"free, cached and used are not the pool: {stats}"
        available = self.allocator.num_available
        assert available <= stats.num_free + stats.num_cached, (
            f"{available} blocks are available, more than are free or cached: {stats}"
        )
        if not used:
            assert available == stats.num_blocks, (
                f"no row is in use and {available} of {stats.num_blocks} blocks are available"
            )
        for row, table in self.tables.items():
            done = self.num_computed[row]
            kept = self._memory[table].ravel()[:done]
            expected = self._numbers(self.tokens[row][:done], self.salts[row])
            assert np.array_equal(kept, expected), (
                f"the KV of row {row} was overwritten from position "
                f"{_first_difference(kept, expected)} on; its table is {table}"
            )

    def _write(self, row: int, end: int, *, spoiled: bool) -> None:
        numbers = self._numbers(self.tokens[row], self.salts[row])
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

    def _check_refusal(self, method: str, needed: int, before: _Snapshot, after: _Snapshot) -> None:
        available = before[0]
        assert needed > available, (
            f"{method} refused {needed} blocks where {available} were available"
        )
        assert after == before, f"{method} found no room and yet changed {before} to {after}"
        self.check()

    def _copy_blocks(self, method: str, copies: IntArray) -> None:
        for source, target in checked_array(method, "copies", copies, (None, 2)).tolist():
            self._memory[target] = self._memory[source]

    def _numbers(self, tokens: IntArray, salt: int) -> list[int]:
        """For each token the number of the prefix that ends with it, under that salt."""
        numbers: list[int] = []
        parent = -salt
        for token in tokens.tolist():
            parent = self._prefixes.setdefault((parent, token), len(self._prefixes) + 1)
            numbers.append(parent)
        return numbers

    def _counts(self) -> tuple[int, AllocatorStats]:
        return self.allocator.num_available, self.allocator.stats()

    def _snapshot(self, tokens: IntArray, salt: int) -> _Snapshot:
        return *self._counts(), self.allocator.match(tokens, salt).block_ids.tolist()


def checked_array(
    method: str, name: str, array: object, shape: tuple[int | None, ...] = (None,)
) -> IntArray:
    """The int32 array of that shape (None: any length) that a method gave."""
    what = repr(array)
    if isinstance(array, np.ndarray):
        typed = cast("IntArray", array)
        found = typed.shape
        has_shape = len(found) == len(shape) and all(
            wanted in (None, length) for wanted, length in zip(shape, found, strict=True)
        )
        if has_shape and typed.dtype == np.int32:
            return typed
        what = f"{typed.dtype}{list(found)}"
    lengths = ", ".join("n" if length is None else str(length) for length in shape)
    raise AssertionError(
        f"{method} gave {name} as {what}; it must be a numpy array int32[{lengths}]"
    )


def _first_difference(found: np.ndarray, expected: list[int]) -> int:
    """The first index at which two sequences differ."""
    pairs = zip(found.tolist(), expected, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))


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
            salt = int(generator.random() < 0.15)
            if driver.admit(row, tokens, salt) and generator.random() < 0.9:
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
