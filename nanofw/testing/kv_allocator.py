"""What every KV allocator must keep: the contract, driven at random over a simulated memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
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
    """

    capabilities: ClassVar[Mapping[str, Any]] = {}
    seeds: ClassVar[range] = range(12)

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
        claimed = tuple(self.capabilities.get("block_sizes", ("*",)))
        return (4, 1, 3, 16) if "*" in claimed else claimed[:4]

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
        assert driver.allocator.num_available == 0
        assert not driver.step([0], [1]), "a full pool gave another block"
        driver.release(0)
        assert driver.allocator.num_available == 5
        assert not driver.admit(0, sequence(5 * driver.block_size + 1))

    def test_release_is_idempotent(self) -> None:
        """Releasing an empty row does nothing, whether or not it was ever used."""
        driver = self.driver()
        driver.release(2)
        driver.admit(1, sequence(7))
        driver.release(1)
        driver.release(1)
        assert driver.allocator.num_available == 16

    def test_extend_is_all_or_nothing(self) -> None:
        """With room for one of two rows, neither is extended."""
        driver = self.driver(num_blocks=3)
        size = driver.block_size
        driver.admit(0, sequence(size))
        driver.admit(1, sequence(size, start=500))
        assert not driver.step([0, 1], [1, 1])
        assert driver.step([1], [1])

    def test_a_row_grows_by_several_blocks_at_once(self) -> None:
        """A long chunk appends blocks in order, beside rows that need one or none."""
        driver = self.driver(num_blocks=16)
        size = driver.block_size
        driver.admit(3, sequence(1))
        driver.admit(0, sequence(2 * size, start=300))
        driver.admit(2, sequence(size + 1, start=600))
        assert driver.step([2, 3, 0], [size - 1, 3 * size, 1])
        assert len(driver.tables[3]) == -(-(1 + 3 * size) // size)
        assert len(driver.tables[0]) == 3

    def test_reset_forgets_everything(self) -> None:
        """After a reset nothing is cached and all blocks are there."""
        driver = self.driver()
        tokens = sequence(3 * driver.block_size)
        driver.admit(0, tokens)
        driver.step([0], [1])
        driver.release(0)
        driver.reset()
        assert driver.allocator.num_available == 16
        assert driver.allocator.match(tokens).num_tokens == 0

    def test_a_committed_prompt_is_found_again(self) -> None:
        """With `prefix_cache`: full blocks are hits while the first row runs and after it.

        Without the claim the same calls must find nothing.
        """
        driver = self.driver(num_blocks=16)
        size = driver.block_size
        tokens = sequence(3 * size + 1)
        expected = 3 * size if self.capabilities.get("prefix_cache") else 0
        driver.admit(0, tokens)
        assert driver.allocator.match(tokens).num_tokens == 0, "found before it was computed"
        driver.compute([0])
        assert driver.allocator.match(tokens).num_tokens == expected
        driver.admit(1, tokens)
        driver.compute([1])
        driver.release(0)
        driver.release(1)
        assert driver.allocator.match(tokens).num_tokens == expected
        changed = tokens.copy()
        changed[size] += 1
        assert driver.allocator.match(changed).num_tokens == min(expected, size)
        assert driver.allocator.match(tokens[size:]).num_tokens == 0, "a tail is not a prefix"

    def test_a_failed_step_shares_nothing(self) -> None:
        """Blocks written by a step that was never committed are not handed out."""
        driver = self.driver()
        tokens = sequence(2 * driver.block_size)
        driver.admit(0, tokens)
        driver.compute([0], failed=[0])
        driver.release(0)
        assert driver.allocator.match(tokens).num_tokens == 0

    def test_reused_blocks_lose_their_content(self) -> None:
        """Content that was overwritten is not found, or a foreign context would be read."""
        driver = self.driver(num_blocks=2)
        size = driver.block_size
        first, second = sequence(2 * size), sequence(2 * size, start=700)
        for tokens in (first, second):
            assert driver.admit(0, tokens)
            driver.compute([0])
            driver.release(0)
        assert driver.allocator.match(first).num_tokens == 0

    def test_equal_prompts_side_by_side(self) -> None:
        """Two rows that compute the same content at once both end, in either order."""
        for order in ([0, 1], [1, 0]):
            driver = self.driver()
            tokens = sequence(2 * driver.block_size)
            for row in (0, 1):
                driver.admit(row, tokens)
            driver.compute([0, 1])
            driver.release(order[0])
            assert driver.admit(2, tokens)
            driver.compute([2])
            driver.release(order[1])
            driver.release(2)
            assert driver.allocator.num_available == 16
            assert driver.allocator.stats().num_used == 0


def sequence(num_tokens: int, start: int = 0) -> IntArray:
    """int32[num_tokens] consecutive token ids from `start`."""
    return np.arange(start, start + num_tokens, dtype=np.int32)
