"""Faults of allocators that people found from outside, by their ids."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.kv_allocator import Allocation, AllocatorConfig, Extension, KVAllocator
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import AllocatorError
from nanofw.kv_allocators.eviction_queue import EvictionQueue
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.testing.kv_allocator import sequence
from nanofw.testing.kv_allocator_driver import KVAllocatorDriver, random_walk
from nanofw.testing.sim_engine import EngineShape, simulated_engine
from tests.engine.sim_engines import FirstCome

SHAPE = EngineShape(num_blocks=24, block_size=4, max_num_seqs=4, max_model_len=64)


def serve(allocator: KVAllocator, *, overlap: bool = False, num: int = 6) -> dict[str, list[int]]:
    """Tokens of some requests over an allocator; its device reads through the block tables."""
    shape = EngineShape(**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}
                        | {"overlap": overlap})  # fmt: skip
    engine = simulated_engine(FirstCome(), shape, allocator=allocator, eos_probability=0.0)
    for i in range(num):
        sampling = SamplingParams(max_tokens=14, seed=i)
        engine.add_request(Request(id=f"r{i}", prompt_token_ids=range(1, 9 + i), sampling=sampling))
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished:
        tokens |= {output.id: output.token_ids.tolist() for output in engine.step().finished}
    engine.stats()
    return tokens


def faulty(method: str, answer: Any, base: type[KVAllocator] = PagedPrefixAllocator) -> KVAllocator:
    """An allocator whose method answers `answer(sound answer)`."""
    inner = getattr(base, method)

    def spoilt(self: Any, *arguments: Any) -> Any:
        return answer(inner(self, *arguments))

    made: Any = type("Faulty", (base,), {method: spoilt})
    return made(None, SHAPE.allocator_config())


def change_blocks(change: Any) -> Any:
    def changed(answer: Any) -> Any:
        if answer is None or not len(answer.block_ids):
            return answer
        if isinstance(answer, Allocation):
            return Allocation(change(answer.block_ids))
        return Extension(answer.rows, answer.positions, change(answer.block_ids))

    return changed


def fails(_: Any) -> Any:
    raise SystemExit(3)


OVERLAP = pytest.mark.parametrize("overlap", [False, True])


@OVERLAP
@pytest.mark.parametrize("method", ["match", "acquire", "extend", "commit", "release", "stats"])
def test_F013_what_an_allocator_raises_is_named(method: str, overlap: bool) -> None:
    with pytest.raises(AllocatorError, match=rf"Faulty: {method}\(\) raised SystemExit: 3"):
        serve(faulty(method, fails), overlap=overlap)


@OVERLAP
@pytest.mark.parametrize("base", [PagedAllocator, PagedPrefixAllocator])
@pytest.mark.parametrize("method", ["acquire", "extend"])
@pytest.mark.parametrize(
    "change",
    [
        np.zeros_like,
        lambda blocks: blocks[:0],
        lambda blocks: blocks.tolist(),
        lambda blocks: blocks + 1,
        lambda blocks: blocks.astype(np.int64),
        lambda blocks: blocks.astype(float),
        lambda blocks: -blocks - 1,
        lambda blocks: np.concatenate((blocks, blocks)),
        lambda blocks: blocks[None],
    ],
    ids=["zeros", "none", "list", "next", "int64", "float", "below", "twice", "wider"],
)  # fmt: skip
def test_F013_wrong_tables_are_named_before_a_token_is_handed_out(
    change: Any, method: str, base: type[KVAllocator], overlap: bool
) -> None:
    with pytest.raises(AllocatorError, match=r"Faulty: (acquire|extend)\(\)"):
        serve(faulty(method, change_blocks(change), base), overlap=overlap)


@OVERLAP
@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("acquire", lambda _: [0, 1], "acquire.* returned .*an Allocation or None"),
        ("acquire", lambda _: None, "acquire.* gives no blocks to <request 'r0'"),
        ("extend", lambda _: 7, "extend.* returned 7; it must be an Extension or None"),
        ("match", lambda _: None, "match.* returned None; it must be a Match"),
        ("stats", lambda _: {}, "stats.* returned {}; it must be AllocatorStats"),
    ],
)
def test_F013_other_answers_are_named(method: str, answer: Any, words: str, overlap: bool) -> None:
    with pytest.raises(AllocatorError, match=words):
        serve(faulty(method, answer), overlap=overlap)


@OVERLAP
def test_F013_a_row_that_gets_no_room_is_named(overlap: bool) -> None:
    nothing = Extension(*[np.empty(0, np.int32)] * 3)
    allocator = faulty("extend", lambda _: nothing)
    with pytest.raises(AllocatorError, match=r"extend\(\) left row \d without room"):
        serve_unchecked(allocator, overlap=overlap)


def serve_unchecked(allocator: KVAllocator, *, overlap: bool) -> None:
    """As `serve`, on a device that does not notice what it reads."""
    shape = EngineShape(num_blocks=24, block_size=4, max_model_len=64, overlap=overlap)
    engine = simulated_engine(FirstCome(), shape, allocator=allocator, check_context=False)
    engine.add_request(Request(id="a", prompt_token_ids=range(1, 5), sampling=SamplingParams()))
    to_end(engine)


def to_end(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


@pytest.mark.parametrize("number", [-1, 25, "8", 1.0, True, None, 10**30])
def test_F013_a_number_of_blocks_that_cannot_be_is_named(number: Any) -> None:
    odd = type("Faulty", (PagedAllocator,), {"num_available": property(lambda self: number)})
    with pytest.raises(AllocatorError, match=r"Faulty: num_available\(\) returned"):
        serve(odd(None, SHAPE.allocator_config()))


def test_F013_what_an_allocator_is_shown_cannot_be_written() -> None:
    class Writes(PagedAllocator):
        def commit(self, rows: Any, num_tokens: Any, tokens: Any) -> None:
            tokens[:] = 0

    with pytest.raises(AllocatorError, match=r"Writes: commit\(\) raised ValueError.*read-only"):
        serve(Writes(None, SHAPE.allocator_config()))


@OVERLAP
@pytest.mark.parametrize("base", [PagedAllocator, PagedPrefixAllocator])
def test_F013_a_sound_allocator_is_never_blamed(base: Any, overlap: bool) -> None:
    """Many more blocks than are looked at together, and rows that come and go."""
    config = SHAPE.allocator_config()
    assert serve(base(None, config), overlap=overlap, num=40) == serve(
        PagedAllocator(None, config), num=40
    )


# -- the accounting -----------------------------------------------------------------------


def used_allocator() -> PagedPrefixAllocator:
    """Blocks that are free, cached and used, with gaps in the eviction queue."""
    config = AllocatorConfig(num_blocks=24, block_size=2, max_num_seqs=6, max_blocks_per_row=24)
    allocator = PagedPrefixAllocator(None, config)
    driver = KVAllocatorDriver(allocator, config)
    random_walk(driver, np.random.default_rng(5), num_calls=120)
    for row in list(driver.tables):
        driver.release(row)
    for row, start in enumerate((0, 100, 200)):
        driver.admit(row, sequence(7, start))
        driver.compute([row])
    driver.release(0)
    driver.release(1)
    driver.admit(1, sequence(7))
    driver.release(2)
    assert allocator.stats().num_cached > 3
    assert allocator.stats().num_used
    return allocator


def queue_of(allocator: PagedPrefixAllocator) -> EvictionQueue:
    return allocator._lru


@pytest.mark.parametrize("by", [-3, -1, 1, 2])
@pytest.mark.parametrize("name", ["_num", "_head", "_tail"])
def test_F049_a_count_of_the_eviction_queue_that_is_off_is_named(name: str, by: int) -> None:
    allocator = used_allocator()
    allocator.check_integrity()
    queue = queue_of(allocator)
    before = queue.ids().tolist()
    setattr(queue, name, getattr(queue, name) + by)
    if name == "_num" or queue.ids().tolist() != before:
        with pytest.raises(AllocatorError):
            allocator.check_integrity()


def test_F049_every_place_of_the_eviction_queue_is_checked() -> None:
    """Each entry is changed to others: found, or a gap in which nothing stands."""
    sound, found = used_allocator(), 0
    blocks = queue_of(sound).ids().tolist()
    for name in ("_index", "_queue"):
        for number in range(len(getattr(queue_of(sound), name))):
            for value in (-1, 0, 3, number + 1, 23, 10_000):
                allocator = deepcopy(sound)
                queue = queue_of(allocator)
                array = getattr(queue, name)
                if array[number] == value:
                    continue
                array[number] = value
                try:
                    allocator.check_integrity()
                except AllocatorError:
                    found += 1
                    continue
                assert queue.ids().tolist() == blocks, (name, number, value)
                assert [block in queue for block in range(24)] == [
                    block in blocks for block in range(24)
                ], (name, number, value)
    assert found > 20


@pytest.mark.parametrize("by", [-1, 1, 2, 1000])
@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("name", ["_due", "_room", "_num_row_blocks"])
def test_F049_a_row_whose_numbers_are_off_is_named(name: str, row: int, by: int) -> None:
    allocator = used_allocator()
    array = getattr(allocator, name)
    array[row] = (int(array[row]) - by) % (1 << 31)
    with pytest.raises(AllocatorError):
        allocator.check_integrity()


@pytest.mark.parametrize("by", [-1, 1])
def test_F049_a_count_of_free_blocks_that_is_off_is_named(by: int) -> None:
    allocator = used_allocator()
    allocator._free._size += by
    with pytest.raises(AllocatorError):
        allocator.check_integrity()


def test_F049_a_queue_that_counts_too_many_does_not_search_for_ever() -> None:
    queue = EvictionQueue(8)
    queue.append(np.array([5, 2, 7, 1], np.int32))
    queue.remove(np.array([2, 7], np.int32))
    queue._num += 1
    with pytest.raises(AllocatorError, match="counts 3 blocks, and has 2"):
        queue.pop(3)


@OVERLAP
def test_F049_a_real_engine_checks_every_few_steps(overlap: bool) -> None:
    class Loses(PagedPrefixAllocator):
        def extend(self, rows: Any, num_tokens: Any) -> Any:
            self._due[3] = 17
            return super().extend(rows, num_tokens)

    assert serve(Loses(None, SHAPE.allocator_config()), overlap=overlap)
    shape = EngineShape(num_blocks=24, overlap=overlap)
    allocator = Loses(None, shape.allocator_config())
    engine = simulated_engine(FirstCome(), shape, allocator=allocator, check_every=4)
    sampling = SamplingParams(max_tokens=20)
    engine.add_request(Request(id="a", prompt_token_ids=range(1, 5), sampling=sampling))
    with pytest.raises(AllocatorError, match=r"Loses: check_integrity\(\) raised .*row 3 waits"):
        to_end(engine)
    assert engine.stats()["num_steps"] <= 5
