"""The `sdpa` backend against plain attention over pages laid out at random."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.attention_backends.sdpa import SdpaBackend
from nanofw.attention_backends.sdpa_run import RunPart
from nanofw.contracts.attention_backend import AttentionConfig
from tests.attention_backends.sdpa_batches import (
    Rows,
    config,
    make_batch,
    plain_attention,
    tables_for,
)

NUM_BLOCKS = 96


def run(
    rows: Rows,
    facts: AttentionConfig,
    *,
    seed: int = 0,
    host: bool = True,
    poison: bool = True,
    tables: np.ndarray | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of a pass by row, and those of plain attention.

    The tokens before the pass are written by passes of their own, in chunks of one row. With
    `poison` every block starts full of NaN, as an earlier owner may leave it.
    """
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    device = str(facts.device)
    num_blocks = NUM_BLOCKS + 2048 // facts.block_size
    if tables is None:
        tables = tables_for(rows, facts.block_size, num_blocks, rng)
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(num_blocks)
    if poison:
        for keys, values in pool:
            keys.fill_(torch.nan)
            values.fill_(torch.nan)

    def random(tokens: int, heads: int) -> torch.Tensor:
        tensor = torch.randn(tokens, heads, facts.head_dim, generator=generator)
        return tensor.to(facts.device, facts.dtype)

    keys = [random(length, facts.num_kv_heads) for length in rows.context]
    values = [random(length, facts.num_kv_heads) for length in rows.context]
    queries = [random(length, facts.num_heads) for length in rows.new]
    for row, before in enumerate(rows.before):
        if before:
            alone = Rows([0], [before])
            batch = make_batch(alone, tables[row : row + 1], facts.block_size, device=device)
            batch.attention = backend.prepare(batch)
            query = random(before, facts.num_heads)
            backend.forward(query, keys[row][:before], values[row][:before], 0, pool[0], batch, 1.0)
    batch = make_batch(rows, tables, facts.block_size, device=device, host=host)
    batch.attention = backend.prepare(batch)
    window = facts.sliding_windows[0] if facts.sliding_windows else None
    out = backend.forward(
        torch.cat(queries),
        torch.cat([k[b:] for k, b in zip(keys, rows.before, strict=True)]),
        torch.cat([v[b:] for v, b in zip(values, rows.before, strict=True)]),
        0, pool[0], batch, 0.3,
    )  # fmt: skip
    expected = [
        plain_attention(q, k, v, b, window, 0.3)
        for q, k, v, b in zip(queries, keys, values, rows.before, strict=True)
    ]
    return list(out.split(rows.new)), expected


def assert_close(got: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    for mine, plain in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), plain, rtol=tolerance, atol=tolerance)


MIXED = Rows(before=[0, 33, 99, 15, 16, 0, 40, 64], new=[1, 1, 1, 1, 1, 37, 25, 64])


@pytest.mark.parametrize("block_size", [1, 7, 16, 32, 256])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)])
def test_mixed_batch_equals_plain_attention(block_size: int, heads: tuple[int, int]) -> None:
    facts = config(num_heads=heads[0], num_kv_heads=heads[1], block_size=block_size)
    assert_close(*run(MIXED, facts), 1e-5)


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
            ],
        ),
    ],
)
def test_the_last_query_of_a_chunk_is_right(device: str, window: int | None) -> None:
    """On CUDA a float32 kernel of torch was wrong for the last of 65, 129 and 193 queries."""
    rows = Rows(before=[300, 500, 40, 707], new=[65, 129, 193, 64])
    facts = config(
        num_heads=16, num_kv_heads=8, head_dim=128, device=device, windows=(window,)
    )  # fmt: skip
    assert_close(*run(rows, facts), 1e-4)


@pytest.mark.parametrize("window", [1, 5, 16, 40, 4096])
@pytest.mark.parametrize("block_size", [1, 16])
def test_sliding_window_hides_older_keys(window: int, block_size: int) -> None:
    facts = config(block_size=block_size, windows=(window,))
    assert_close(*run(MIXED, facts), 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_low_precision(dtype: torch.dtype, tolerance: float) -> None:
    assert_close(*run(MIXED, config(dtype=dtype)), tolerance)


def test_float16_scores_may_be_large_before_they_are_scaled() -> None:
    facts = config(num_heads=2, num_kv_heads=2, dtype=torch.float16)
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(2)
    large = torch.full((1, 2, 16), 100.0, dtype=torch.float16)  # 16 * 100 * 100 > 65504
    for before in (0, 1):
        batch = make_batch(Rows([before], [1]), np.array([[0]], np.int32), 16)
        batch.attention = backend.prepare(batch)
        out = backend.forward(large, large, large, 0, pool[0], batch, 0.01)
    torch.testing.assert_close(out, large)


def test_tables_are_read_from_the_device_when_the_batch_has_no_host_copy() -> None:
    assert_close(*run(MIXED, config(), host=False), 1e-5)


rows_strategy = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=8
).map(lambda pairs: Rows([b for b, _ in pairs], [n for _, n in pairs]))


@settings(max_examples=60)
@given(
    rows=rows_strategy,
    block_size=st.sampled_from([2, 16, 64]),
    window=st.sampled_from([None, 1, 17]),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_plain_attention(
    rows: Rows, block_size: int, window: int | None, seed: int
) -> None:
    facts = config(block_size=block_size, windows=(window,))
    assert_close(*run(rows, facts, seed=seed), 1e-5)


def test_rows_that_share_blocks_read_the_same_prefix() -> None:
    """Seven rows over one cached prefix, one query each."""
    facts = config(block_size=16)
    backend, generator = SdpaBackend(None, facts), torch.Generator().manual_seed(0)
    pool = backend.allocate(NUM_BLOCKS)
    prefix, count = 80, 7
    tables = np.zeros((count, 6), np.int32)
    tables[:, :5] = np.arange(20, 25)
    tables[:, 5] = np.arange(50, 50 + count)

    def random(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, facts.head_dim, generator=generator)

    shared_keys, shared_values = random(prefix, 2), random(prefix, 2)
    batch = make_batch(Rows([0], [prefix]), tables[:1, :5], 16)
    batch.attention = backend.prepare(batch)
    backend.forward(random(prefix, 4), shared_keys, shared_values, 0, pool[0], batch, 0.25)
    batch = make_batch(Rows([prefix] * count, [1] * count), tables, 16)
    batch.attention = backend.prepare(batch)
    query, key, value = random(count, 4), random(count, 2), random(count, 2)
    out = backend.forward(query, key, value, 0, pool[0], batch, 0.25)
    for row in range(count):
        keys = torch.cat((shared_keys, key[row : row + 1]))
        values = torch.cat((shared_values, value[row : row + 1]))
        plain = plain_attention(query[row : row + 1], keys, values, prefix, None, 0.25)
        torch.testing.assert_close(out[row : row + 1].double(), plain, rtol=1e-5, atol=1e-5)


def test_runs_of_blocks_and_lone_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that lie together are read as views, gaps included, others are copied."""
    facts = config(block_size=8)
    rows = Rows([70, 90, 33], [1, 1, 1])
    got, expected = run(rows, facts)
    monkeypatch.setattr("nanofw.attention_backends.sdpa_decode._MIN_RUN", 1)
    views, _ = run(rows, facts)
    monkeypatch.setattr("nanofw.attention_backends.sdpa_decode._MAX_GAP", 1000)
    one_view, _ = run(rows, facts)
    monkeypatch.setattr("nanofw.attention_backends.sdpa_decode._MIN_RUN", 1 << 30)
    monkeypatch.setattr("nanofw.attention_backends.sdpa_decode._MAX_COPIED", 3)
    copies, _ = run(rows, facts)
    for results in (got, views, one_view, copies):
        assert_close(results, expected, 1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(
    ("blocks", "is_run"),
    [([5, 6, 7, 8, 9], True), ([9, 8, 5, 7, 6], True), ([5, 6, 7, 8, 30], False)],
)
def test_a_row_that_decodes_alone(
    heads: tuple[int, int], window: int | None, blocks: list[int], is_run: bool
) -> None:
    """Its blocks are neighbours in any order, or not; a prompt may come with it."""
    facts = config(num_heads=heads[0], num_kv_heads=heads[1], block_size=8, windows=(window,))
    tables = np.array([blocks, [40, 41, 42, 0, 0]], np.int32)
    rows = Rows([36, 4], [1, 17])
    assert_close(*run(rows, facts, tables=tables), 1e-5)
    alone = Rows([36], [1])
    assert_close(*run(alone, facts, tables=tables[:1]), 1e-5)
    batch = make_batch(alone, tables[:1], 8)
    part = SdpaBackend(None, facts).prepare(batch).decode[window]
    assert isinstance(part, RunPart) == (is_run or window == 1)


def test_long_masks_are_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanofw.attention_backends.sdpa_prefill._MAX_MASK", 300)
    assert_close(*run(Rows([50, 3], [40, 70]), config(windows=(20,))), 1e-5)


@pytest.mark.parametrize("block_size", [1, 4])
def test_B082_slot_minus_one_writes_nothing(block_size: int) -> None:
    facts = config(block_size=block_size)
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(8)
    for keys, values in pool:
        keys.fill_(7)
        values.fill_(7)
    batch = make_batch(Rows([0], [3]), np.array([[3, 4, 5]], np.int32), block_size)
    batch.slots = torch.tensor([3, -1, -1])
    batch.attention = backend.prepare(batch)
    batch.attention.started = batch.attention.started[:0]  # clearing is not what is tested
    ones = torch.ones(3, 2, 16)
    backend.forward(torch.ones(3, 4, 16), ones, ones, 0, pool[0], batch, 1.0)
    keys = pool[0].keys[:8].transpose(1, 2).reshape(-1, 2, 16)
    values = pool[0].values[:8].permute(0, 3, 1, 2).reshape(-1, 2, 16)
    for written in (keys, values):
        assert (written[3] == 1).all()
        others = torch.arange(len(written)) != 3
        assert (written[others] == 7).all()


def test_padding_after_the_rows_is_left_alone() -> None:
    facts = config()
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(8)
    batch = make_batch(Rows([0, 0], [1, 3]), np.array([[3], [4]], np.int32), 16)
    batch.slots = torch.cat((batch.slots, torch.tensor([-1, -1])))
    batch.attention = backend.prepare(batch)
    query, key = torch.randn(6, 4, 16), torch.randn(6, 2, 16)
    out = backend.forward(query, key, key, 0, pool[0], batch, 0.25)
    plain = plain_attention(query[1:4], key[1:4], key[1:4], 0, None, 0.25)
    torch.testing.assert_close(out[1:4].double(), plain, rtol=1e-5, atol=1e-5)
    assert (out[4:] == 0).all()


def test_copied_blocks_hold_the_same_in_every_layer() -> None:
    facts = config(num_layers=3)
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(8)
    for layer, (keys, values) in enumerate(pool):
        keys.copy_(torch.arange(9.0)[:, None, None, None] + 100 * layer)
        values.copy_(torch.arange(9.0)[:, None, None, None] + 100 * layer)
    backend.copy_blocks(pool, torch.tensor([[1, 5], [2, 0]]))
    for layer, (keys, values) in enumerate(pool):
        for tensor in (keys, values):
            firsts = (tensor[:8, 0, 0, 0] - 100 * layer).tolist()
            assert firsts == [2, 1, 2, 3, 4, 1, 6, 7]


def test_bytes_per_block_is_what_a_block_takes() -> None:
    facts = config(num_layers=3, block_size=8, dtype=torch.bfloat16)
    backend = SdpaBackend(None, facts)
    pool = backend.allocate(10)
    total = sum(tensor.nbytes for layer in pool for tensor in layer)
    assert backend.bytes_per_block() * 11 == total
