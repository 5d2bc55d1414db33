"""Both built-in allocators keep the contract, also when every hash is the same."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import xxhash

from nanofw.contracts.arrays import IntArray
from nanofw.kv_allocators import prefix_index
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import AllocatorConfig, KVAllocator
from nanofw.testing.kv_allocator import KVAllocatorChecks, sequence
from nanofw.testing.kv_allocator_driver import KVAllocatorDriver, random_walk


def constant(tokens: bytes, parent: int) -> int:
    return 7


def two_values(tokens: bytes, parent: int) -> int:
    return sum(tokens) % 2


class TestPaged(KVAllocatorChecks):
    capabilities: ClassVar = {"prefix_cache": False}

    def make(self, config: AllocatorConfig) -> KVAllocator:
        return PagedAllocator(None, config)


class TestPagedPrefix(KVAllocatorChecks):
    capabilities: ClassVar = {"prefix_cache": True}

    def make(self, config: AllocatorConfig) -> KVAllocator:
        return PagedPrefixAllocator(None, config)


class Colliding(PagedPrefixAllocator):
    """Counts by matching: hashes alone, by which it counts otherwise, say nothing here."""

    def num_cached_tokens(self, token_ids: IntArray, salt: int = 0) -> int:
        return self.match(token_ids, salt).num_tokens


@pytest.mark.parametrize("hash_block", [constant, two_values])
@pytest.mark.parametrize("seed", range(6))
def test_a_collision_never_hands_out_foreign_kv(seed: int, hash_block) -> None:
    config = AllocatorConfig(num_blocks=12, block_size=2, max_num_seqs=5, max_blocks_per_row=12)
    driver = KVAllocatorDriver(Colliding(None, config, hash_block), config)
    random_walk(driver, np.random.default_rng(seed), num_calls=400)


def test_a_collision_costs_only_the_hit() -> None:
    config = AllocatorConfig(num_blocks=8, block_size=2, max_num_seqs=3, max_blocks_per_row=8)
    driver = KVAllocatorDriver(Colliding(None, config, constant), config)
    for row, start in enumerate((0, 10)):
        driver.admit(row, sequence(6, start))
        driver.compute([row])
    assert driver.match(sequence(6)).num_tokens == 2  # the first block took the only hash
    assert driver.match(sequence(6, 10)).num_tokens == 0
    driver.step([0, 1], [5, 5])  # a row without a chain goes on
    driver.release(0)
    driver.release(1)
    assert driver.allocator.num_available == 8


@pytest.mark.parametrize("hash_block", [constant, two_values, xxhash.xxh3_64_intdigest])
@pytest.mark.parametrize("digest", [lambda data, seed: 7, lambda data, seed: len(data) // 16])
def test_prompts_of_one_digest_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, hash_block, digest
) -> None:
    """What is remembered of one prompt is never taken for another one, a shorter one say."""
    monkeypatch.setattr(prefix_index.xxhash, "xxh3_128_intdigest", digest)
    config = AllocatorConfig(num_blocks=12, block_size=2, max_num_seqs=5, max_blocks_per_row=12)
    for seed in range(4):
        driver = KVAllocatorDriver(Colliding(None, config, hash_block), config)
        random_walk(driver, np.random.default_rng(seed), num_calls=400)
    driver = KVAllocatorDriver(Colliding(None, config, hash_block), config)
    driver.admit(0, sequence(9))
    driver.compute([0])
    lengths = [driver.match(sequence(length)).num_tokens for length in (9, 3, 5, 2, 8)]
    if hash_block is xxhash.xxh3_64_intdigest:
        assert lengths == [8, 2, 4, 2, 8]


def test_B069_slots_follow_the_block_size() -> None:
    for block_size in (1, 3, 16, 512):
        for factory in (PagedAllocator, PagedPrefixAllocator):
            config = AllocatorConfig(
                num_blocks=4, block_size=block_size, max_num_seqs=2, max_blocks_per_row=4
            )
            small, large = factory(None, config), factory(None, config)
            assert len(small.acquire(0, sequence(3 * block_size), None).block_ids) == 3
            assert len(large.acquire(0, sequence(2 * block_size + 1), None).block_ids) == 3
            rows, full = np.array([0], np.int32), np.array([3 * block_size], np.int32)
            assert len(small.extend(rows, full).block_ids) == 0
            assert len(small.extend(rows, full + 1).block_ids) == 1
            assert small.extend(rows, full + block_size).block_ids.tolist() == []
            assert len(large.extend(rows, full).block_ids) == 0
