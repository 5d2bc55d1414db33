"""What every KV allocator must keep: the contract, driven at random over a simulated memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.narrowing import is_list
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.kv_allocator_driver import KVAllocatorDriver, random_walk


class KVAllocatorChecks(ABC):
    """Checks of one allocator; each `test_` method is one. Subclass it under pytest.

        class TestMyAllocator(KVAllocatorChecks):
            capabilities = {"prefix_cache": True}

            def make(self, config):
                return MyAllocator(MyOptions(), config)

    Attributes:
        capabilities: what the manifest claims. `prefix_cache` switches the checks of hits on,
            and `block_sizes` (a `"*"` allows all) says which sizes are tried.
        seeds: random walks to take; each is some hundred calls.
        caches_all: every full block that was committed is a hit while there is room; False: with
            `prefix_cache`, at least the first one of a prompt.
    """

    capabilities: ClassVar[Mapping[str, object]] = {}
    seeds: ClassVar[range] = range(12)
    caches_all: ClassVar[bool] = True

    @abstractmethod
    def make(self, config: AllocatorConfig) -> KVAllocator:
        """A fresh allocator."""

    def driver(
        self,
        num_blocks: int = 16,
        block_size: int | None = None,
        max_num_seqs: int = 4,
        max_blocks_per_row: int | None = None,
    ) -> KVAllocatorDriver:
        """A driver of a fresh allocator over a pool of that shape."""
        config = AllocatorConfig(
            num_blocks=num_blocks,
            block_size=block_size or self.block_sizes()[0],
            max_num_seqs=max_num_seqs,
            max_blocks_per_row=max_blocks_per_row or num_blocks,
        )
        return KVAllocatorDriver(self.make(config), config)

    def block_sizes(self) -> tuple[int, ...]:
        """The sizes that are tried: small ones, where all are claimed."""
        claimed = self.capabilities.get("block_sizes", ("*",))
        assert is_list(claimed), f"block_sizes is {claimed!r}; it must be a tuple"
        sizes = [size for size in claimed if isinstance(size, int)]
        return (4, 1, 3, 16) if "*" in claimed else tuple(sizes[:4])

    def test_methods_are_those_of_the_contract(self) -> None:
        """No name is misspelt, and each method can be called as the contract says."""
        problems = hook_problems(type(self.driver().allocator), KVAllocator)
        assert not problems, "; ".join(problems)

    def test_a_random_walk_keeps_the_contract(self) -> None:
        """Admissions, steps, failed steps, releases; pools too small; rows that share."""
        for seed in self.seeds:
            sizes = self.block_sizes()
            generator = np.random.default_rng(seed)
            driver = self.driver(
                num_blocks=int(generator.integers(1, 24)),
                block_size=sizes[seed % len(sizes)],
                max_num_seqs=int(generator.integers(1, 7)),
            )
            random_walk(driver, generator, num_calls=150)

    def test_all_blocks_can_be_used_by_one_row(self) -> None:
        """A request as large as the pool fits, and one token more does not."""
        driver = self.driver(num_blocks=5, max_blocks_per_row=6)
        tokens = sequence(5 * driver.block_size)
        assert driver.admit(0, tokens), "the pool is empty, and a request of its size was refused"
        check_available(driver, 0, "one row has all 5 blocks")
        assert not driver.step([0], [1]), "a full pool gave another block"
        driver.release(0)
        check_available(driver, 5, "the row was released")
        tokens = sequence(5 * driver.block_size + 1)
        assert not driver.admit(0, tokens), f"{len(tokens)} tokens fit into 5 blocks"

    def test_release_is_idempotent(self) -> None:
        """Releasing an empty row does nothing, whether or not it was ever used."""
        driver = self.driver()
        driver.release(2)
        driver.admit(1, sequence(7))
        driver.release(1)
        driver.release(1)
        check_available(driver, 16, "all rows were released, one of them twice")

    def test_extend_is_all_or_nothing(self) -> None:
        """With room for one of two rows, neither is extended."""
        driver = self.driver(num_blocks=3)
        size = driver.block_size
        driver.admit(0, sequence(size))
        driver.admit(1, sequence(size, start=500))
        assert not driver.step([0, 1], [1, 1]), "one block was left, and two rows got one each"
        assert driver.step([1], [1]), "one block was left, and a row did not get it"

    def test_a_row_grows_by_several_blocks_at_once(self) -> None:
        """A long chunk appends blocks in order, beside rows that need one or none."""
        driver = self.driver(num_blocks=16)
        size = driver.block_size
        driver.admit(3, sequence(1))
        driver.admit(0, sequence(2 * size, start=300))
        driver.admit(2, sequence(size + 1, start=600))
        assert driver.step([2, 3, 0], [size - 1, 3 * size, 1]), "16 blocks were too few"
        for row in (3, 0):
            num, needed = len(driver.tables[row]), -(-len(driver.tokens[row]) // size)
            assert num == needed, f"row {row} has {num} blocks and needs {needed}"

    def test_reset_forgets_everything(self) -> None:
        """After a reset nothing is cached and all blocks are there."""
        driver = self.driver()
        tokens = sequence(3 * driver.block_size)
        driver.admit(0, tokens)
        driver.step([0], [1])
        driver.release(0)
        driver.reset()
        check_available(driver, 16, "the allocator was reset")
        check_match(driver, tokens, 0, "after a reset")

    def test_a_committed_prompt_is_found_again(self) -> None:
        """With `prefix_cache`: full blocks are hits while the first row runs and after it.

        Without the claim the same calls must find nothing.
        """
        driver = self.driver(num_blocks=16)
        size = driver.block_size
        tokens = sequence(3 * size + 1)
        expected = 3 * size if self.capabilities.get("prefix_cache") else 0
        driver.admit(0, tokens)
        check_match(driver, tokens, 0, "before it was computed")
        driver.compute([0])
        self._check_hit(driver, tokens, expected, "while its first row runs")
        driver.admit(1, tokens)
        driver.compute([1])
        driver.release(0)
        driver.release(1)
        self._check_hit(driver, tokens, expected, "after its rows were released")
        changed = tokens.copy()
        changed[size] += 1
        check_match(driver, changed, min(expected, size), "with a change in the second block")
        check_match(driver, tokens[size:], 0, "of a tail, which is not a prefix")

    def test_salts_keep_prefixes_apart(self) -> None:
        """What was computed under one salt is found under that salt alone."""
        driver = self.driver()
        size = driver.block_size
        tokens = sequence(2 * size + 1)
        expected = 2 * size if self.capabilities.get("prefix_cache") else 0
        driver.admit(0, tokens, salt=7)
        driver.compute([0])
        self._check_hit(driver, tokens, expected, "under its salt", salt=7)
        check_match(driver, tokens, 0, "under another salt", salt=8)
        check_match(driver, tokens, 0, "without a salt")

    def test_equal_calls_give_equal_blocks(self) -> None:
        """In a second allocator, and after a reset: a run can be had again, block by block."""
        first, second = self.driver(), self.driver()
        for driver in (first, second, second):  # a walk ends with a reset
            random_walk(driver, np.random.default_rng(0), num_calls=60)
        num = len(first.given)
        check_equal_blocks(first.given, second.given[:num], "a second allocator")
        check_equal_blocks(first.given, second.given[num:], "the same one after a reset")

    def test_allocators_share_no_state(self) -> None:
        """Two in one process, as replicas have them, do not touch each other."""
        first = self.driver()
        before = class_state(type(first.allocator))
        first.admit(0, sequence(first.block_size + 1))
        first.compute([0])
        second = self.driver()
        check_match(second, sequence(first.block_size + 1), 0, "by an allocator of its own")
        random_walk(second, np.random.default_rng(0), num_calls=60)
        first.check()
        first.step([0], [1])
        first.release(0)
        check_class_state(before, type(first.allocator))

    def _check_hit(
        self, driver: KVAllocatorDriver, tokens: IntArray, expected: int, when: str, salt: int = 0
    ) -> None:
        """All that was committed is found; at least one block where not all is kept."""
        found = driver.match(tokens, salt).num_tokens
        if self.caches_all or not driver.block_size <= found <= expected:
            check_match(driver, tokens, expected, when, salt=salt)

    def test_a_failed_step_shares_nothing(self) -> None:
        """Blocks written by a step that was never committed are not handed out."""
        driver = self.driver()
        tokens = sequence(2 * driver.block_size)
        driver.admit(0, tokens)
        driver.compute([0], failed=[0])
        driver.release(0)
        check_match(driver, tokens, 0, "after a step that failed")

    def test_reused_blocks_lose_their_content(self) -> None:
        """Content that was overwritten is not found, or a foreign context would be read."""
        driver = self.driver(num_blocks=2)
        size = driver.block_size
        first, second = sequence(2 * size), sequence(2 * size, start=700)
        for tokens in (first, second):
            assert driver.admit(0, tokens), "the pool is empty, and a row of its size was refused"
            driver.compute([0])
            driver.release(0)
        check_match(driver, first, 0, "after its blocks were given to another row")

    def test_equal_prompts_side_by_side(self) -> None:
        """Two rows that compute the same content at once both end, in either order."""
        for order in ([0, 1], [1, 0]):
            driver = self.driver()
            tokens = sequence(2 * driver.block_size)
            for row in (0, 1):
                driver.admit(row, tokens)
            driver.compute([0, 1])
            driver.release(order[0])
            assert driver.admit(2, tokens), "blocks are left, and a row was refused"
            driver.compute([2])
            driver.release(order[1])
            driver.release(2)
            check_available(driver, 16, "all rows were released")
            stats = driver.allocator.stats()
            assert stats.num_used == 0, f"no row is in use: {stats}"


def sequence(num_tokens: int, start: int = 0) -> IntArray:
    """int32[num_tokens] consecutive token ids from `start`."""
    return np.arange(start, start + num_tokens, dtype=np.int32)


def check_equal_blocks(
    first: Sequence[Sequence[int]], other: Sequence[Sequence[int]], whose: str
) -> None:
    """Two allocators gave the same blocks to the same calls."""
    pairs = zip_longest(first, other)
    different = next(((i, *pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    assert different is None, (
        f"the same calls got other blocks from {whose}: grant {different[0]} was {different[1]} "
        f"and {different[2]}. Random numbers need a seed, with which they begin anew in a reset"
    )


def check_available(driver: KVAllocatorDriver, expected: int, when: str) -> None:
    """The allocator says how many blocks are available."""
    found = driver.allocator.num_available
    assert found == expected, f"{found} blocks are available, not {expected}: {when}"


def check_match(
    driver: KVAllocatorDriver, tokens: IntArray, expected: int, when: str, *, salt: int = 0
) -> None:
    """A match finds as many tokens as are expected."""
    found = driver.match(tokens, salt).num_tokens
    assert found == expected, f"match found {found} of {len(tokens)} tokens, not {expected}, {when}"
