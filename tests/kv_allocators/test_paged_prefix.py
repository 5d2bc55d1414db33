"""`paged_prefix`: sharing, eviction, duplicates, and the faults that others met."""

from __future__ import annotations

import numpy as np
import pytest

from nanofw.errors import AllocatorError
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import AllocatorConfig, Match
from nanofw.testing.kv_allocator import sequence
from nanofw.testing.kv_allocator_driver import KVAllocatorDriver


def make(num_blocks: int = 8, block_size: int = 4, max_num_seqs: int = 4) -> KVAllocatorDriver:
    config = AllocatorConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_blocks_per_row=num_blocks,
    )
    return KVAllocatorDriver(PagedPrefixAllocator(None, config), config)


def serve(driver: KVAllocatorDriver, row: int, tokens: np.ndarray) -> int:
    """Admit, compute and release; the cached tokens at admission."""
    assert driver.admit(row, tokens)
    cached = driver.num_computed[row]
    driver.compute([row])
    driver.release(row)
    return cached


def test_B001_a_wholly_cached_prompt_leaves_a_token_to_compute() -> None:
    driver = make()
    assert serve(driver, 0, sequence(8)) == 0
    assert serve(driver, 0, sequence(8)) == 4  # the last block is computed again
    assert driver.allocator.match(sequence(8)).num_tokens == 8
    stats = driver.allocator.stats()
    assert (stats.num_cached, stats.num_duplicates) == (2, 1)  # the older copy was freed


def test_B002_a_reused_block_is_no_longer_found() -> None:
    driver = make(num_blocks=2)
    assert serve(driver, 0, sequence(8, 1)) == 0
    assert serve(driver, 0, sequence(8, 11)) == 0
    assert driver.allocator.stats().num_evictions == 2
    assert serve(driver, 0, sequence(8, 1)) == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_B004_equal_prompts_in_one_step_are_duplicates_and_counted(order) -> None:
    driver = make()
    for row in (0, 1):
        assert driver.admit(row, sequence(8))
        assert driver.num_computed[row] == 0
    driver.compute([0, 1])
    assert not set(driver.tables[0]) & set(driver.tables[1])
    assert driver.allocator.stats().num_duplicates == 2
    survivor = driver.tables[order[1]]
    driver.release(order[0])
    # The freed row's blocks hold what the survivor's hold: they are free, not cached.
    assert driver.allocator.stats().num_free == 6
    assert driver.match(sequence(8)).block_ids.tolist() == survivor
    assert driver.admit(2, sequence(8))
    assert driver.tables[2][0] == survivor[0]
    driver.release(order[1])
    driver.release(2)
    assert driver.allocator.stats().num_used == 0
    assert driver.allocator.num_available == 8


def test_B006_distinct_prompts_hit_nothing_and_a_return_is_seen_by_its_length() -> None:
    driver = make(num_blocks=16)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 50_000, 9).astype(np.int32) for _ in range(12)]
    assert [serve(driver, 0, tokens) for tokens in prompts] == [0] * 12
    assert driver.allocator.stats().num_hits == 0
    # A request that was preempted finds its own blocks: the match says how many tokens of it
    # were recovered, and nothing else counts them.
    assert serve(driver, 0, prompts[-1]) == 8
    assert driver.allocator.stats().num_hits == 2


def test_B009_shared_blocks_are_counted_once() -> None:
    driver = make(num_blocks=32, max_num_seqs=8)
    head = sequence(12)
    assert serve(driver, 0, head) == 0
    for row in range(8):
        assert driver.admit(row, np.concatenate((head, sequence(6, 100 * (row + 1)))))
    stats = driver.allocator.stats()
    assert stats.num_used == 3 + 8 * 2
    driver.compute(range(8))
    for row in range(8):
        driver.release(row)
    stats = driver.allocator.stats()
    assert stats.num_used == 0
    assert stats.num_cached == 3 + 8  # the tails of two tokens hold nothing to share
    assert stats.num_free + stats.num_cached == 32


def test_B012_a_returning_request_gets_blocks_for_cached_and_new_tokens_together() -> None:
    driver = make(num_blocks=6)
    tokens = sequence(14)
    for tail in range(1, 5):
        assert driver.admit(0, tokens)
        driver.compute([0])
        assert driver.step([0], [tail])
        tokens = driver.tokens[0]
        driver.release(0)
        assert driver.admit(0, tokens)
        assert len(driver.tables[0]) == -(-len(tokens) // 4)
        driver.release(0)


def test_evictable_blocks_of_the_match_are_no_room_for_the_rest() -> None:
    driver = make(num_blocks=5)
    assert driver.admit(0, sequence(4, 900))
    assert serve(driver, 1, sequence(12)) == 0  # three cached, one free
    assert driver.allocator.num_available == 4
    tokens = np.concatenate((sequence(8), sequence(12, 50)))
    match = driver.match(tokens)
    assert match.num_tokens == 8
    assert driver.allocator.acquire(1, tokens, match) is None  # needs 3 of the 2 that are left
    driver.check()
    assert driver.match(tokens).num_tokens == 8
    assert driver.admit(1, tokens[:16])


def test_the_tail_of_a_request_is_evicted_before_its_head() -> None:
    driver = make(num_blocks=6)
    assert serve(driver, 0, sequence(16)) == 0
    for num_left in (3, 2, 1):
        assert driver.admit(1, sequence((6 - num_left) * 4, 500))
        driver.release(1)
        assert driver.match(sequence(16)).num_tokens == num_left * 4


def test_the_least_recently_used_request_is_evicted_first() -> None:
    driver = make(num_blocks=6)
    for start in (0, 100, 200):
        serve(driver, 0, sequence(8, start))
    serve(driver, 0, sequence(9, 0)[:9])  # used again, with one more block
    found = [driver.match(sequence(8, start)).num_tokens for start in (0, 100, 200)]
    assert found == [8, 4, 8]


def test_a_copy_takes_over_when_the_first_goes() -> None:
    driver = make()
    for row in (0, 1, 2):
        driver.admit(row, sequence(8))
    driver.compute([1])
    driver.compute([0, 2])
    tables = {row: list(table) for row, table in driver.tables.items()}
    assert driver.match(sequence(8)).block_ids.tolist() == tables[1]
    driver.release(1)
    assert driver.match(sequence(8)).block_ids.tolist() in (tables[0], tables[2])
    driver.release(0)
    assert driver.match(sequence(8)).block_ids.tolist() == tables[2]
    driver.release(2)
    assert driver.allocator.stats().num_cached == 2


def test_a_cached_block_that_two_rows_compute_again_is_freed_once() -> None:
    driver = make()
    serve(driver, 0, sequence(8))
    for row in (0, 1):
        assert driver.admit(row, sequence(8))
        assert driver.num_computed[row] == 4
    driver.compute([0, 1])
    driver.check()
    stats = driver.allocator.stats()
    assert (stats.num_used, stats.num_cached, stats.num_duplicates) == (3, 0, 2)


def test_a_prompt_that_waits_is_found_as_blocks_come_and_go() -> None:
    driver = make(num_blocks=4)
    tokens = np.concatenate((sequence(8), sequence(4, 50)))
    assert driver.match(tokens).num_tokens == 0
    serve(driver, 0, sequence(8))
    assert driver.match(tokens).num_tokens == 8
    assert driver.match(tokens).num_tokens == 8  # from remembered hashes
    assert driver.admit(0, sequence(9, 100))  # takes the last free block, evicts the tail
    driver.check()
    assert driver.match(tokens).num_tokens == 4
    driver.release(0)
    serve(driver, 0, tokens)
    assert driver.match(tokens).num_tokens == 12


def test_what_is_counted_is_what_is_matched_as_blocks_come_and_go() -> None:
    """The count goes on from where it was; prompts share heads, and the pool is too small."""
    rng = np.random.default_rng(0)
    driver = make(num_blocks=12, max_num_seqs=3)
    heads = [sequence(8, start) for start in (0, 100)]
    prompts = [
        np.concatenate((heads[i % 2], rng.integers(0, 3, rng.integers(1, 17)).astype(np.int32)))
        for i in range(12)
    ]
    depths = set()
    for turn in range(200):
        row = turn % 3
        driver.release(row)
        if driver.admit(row, prompts[int(rng.integers(12))]):
            driver.compute([row])
        for prompt in prompts:
            counted = driver.allocator.num_cached_tokens(prompt)
            assert counted == driver.match(prompt).num_tokens
            depths.add(counted)
    assert depths >= {0, 4, 8, 12, 16}


def test_rows_that_commit_late_or_never_share_nothing() -> None:
    driver = make()
    driver.admit(0, sequence(8))
    assert driver.match(sequence(8)).num_tokens == 0
    driver.release(0)
    assert driver.match(sequence(8)).num_tokens == 0
    assert driver.allocator.stats().num_free == 8


def test_decoded_blocks_are_shared_when_they_are_full() -> None:
    driver = make()
    driver.admit(0, sequence(6))
    driver.compute([0])
    assert driver.match(sequence(6)).num_tokens == 4
    driver.step([0], [1])
    assert driver.match(driver.tokens[0]).num_tokens == 4
    driver.step([0], [1])
    assert driver.match(driver.tokens[0]).num_tokens == 8


def test_an_outdated_or_foreign_match_is_refused() -> None:
    driver = make(num_blocks=3)
    serve(driver, 0, sequence(9))
    match = driver.match(sequence(8))
    assert serve(driver, 1, sequence(12, 50)) == 0
    with pytest.raises(AllocatorError, match="match again"):
        driver.allocator.acquire(0, sequence(9), match)
    driver.check()
    fresh = driver.match(sequence(12, 50))
    with pytest.raises(AllocatorError, match="does not hold these tokens"):
        driver.allocator.acquire(0, sequence(12), fresh)
    with pytest.raises(AllocatorError, match="does not hold these tokens"):
        driver.allocator.acquire(0, sequence(4, 50), Match(8, fresh.block_ids[:2]))


def test_the_index_never_outgrows_the_pool() -> None:
    driver = make(num_blocks=5, block_size=1)
    generator = np.random.default_rng(0)
    for _ in range(200):
        serve(driver, 0, generator.integers(0, 3, 5).astype(np.int32))
        driver.check()  # each entry of the index names a block of its own
    assert driver.allocator.stats().num_evictions > 100


def test_mistakes_of_the_caller_are_named() -> None:
    driver = make()
    driver.admit(0, sequence(5))
    with pytest.raises(AllocatorError, match="row 0 still owns 2 blocks"):
        driver.allocator.acquire(0, sequence(3), None)
    with pytest.raises(AllocatorError, match="rows own blocks"):
        driver.allocator.reset()
    with pytest.raises(AllocatorError, match="8 entries"):
        driver.allocator.acquire(1, sequence(40), None)
    row, tokens = np.array([0], np.int32), np.zeros((4, 40), np.int32)
    with pytest.raises(AllocatorError, match="more tokens committed"):
        driver.allocator.commit(row, np.array([12], np.int32), tokens)


def test_broken_accounting_is_found() -> None:
    def spoil_refs(allocator):
        allocator._refs[0] += 1

    def lose_a_block(allocator):
        allocator._free.take(1)

    def free_a_used_block(allocator):
        allocator._free.take(1)
        allocator._free.give(allocator._tables[0, :1])

    def forget_content(allocator):
        allocator._index.keys[allocator._tables[0, 0]] = None

    def cache_a_used_block(allocator):
        allocator._lru.append(allocator._tables[0, :1])
        allocator._free.take(1)

    def spoil_the_room(allocator):
        allocator._room[0] += 1

    for spoil in (
        spoil_refs,
        lose_a_block,
        free_a_used_block,
        forget_content,
        cache_a_used_block,
        spoil_the_room,
    ):
        driver = make()
        driver.admit(0, sequence(9))
        driver.compute([0])
        driver.check()
        spoil(driver.allocator)
        with pytest.raises(AllocatorError):
            driver.allocator.check_integrity()


def test_a_row_that_was_never_acquired_shares_nothing() -> None:
    driver = make()
    serve(driver, 0, sequence(8))
    rows, lengths = np.array([0], np.int32), np.array([8], np.int32)
    assert len(driver.allocator.extend(rows, lengths).block_ids) == 2
    driver.allocator.commit(rows, lengths, np.full((4, 8), 5, np.int32))
    assert driver.allocator.match(np.full(8, 5, np.int32)).num_tokens == 0
    driver.allocator.release(0)
    driver.check()
