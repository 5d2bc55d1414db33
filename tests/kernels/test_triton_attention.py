"""The paged attention kernels against plain attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nanofw.kernels.triton import attention_decode as decode
from nanofw.kernels.triton import attention_prefill as prefill
from nanofw.kernels.triton.common import next_power_of_2
from nanofw.kernels.triton.paging import PagedAttention
from nanofw.kernels.triton.tuning import DecodeConfig, PrefillConfig, decode_config
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import attention, device, make_paged, relative_error, tolerance

LENGTHS = [1, 0, 37, 64, 130, 16]
# head size, dtype, page, group, window: each value of each at least once.
SHAPES = [
    (64, torch.float32, 16, 2, None),
    (64, torch.bfloat16, 1, 4, 20),
    (80, torch.float16, 2, 3, None),
    (96, torch.float32, 256, 8, 7),
    (128, torch.bfloat16, 64, 2, None),
    (128, torch.float16, 32, 1, 64),
    (128, torch.float32, 128, 7, 33),
    (256, torch.bfloat16, 4, 1, None),
    (64, torch.float16, 8, 16, None),
]


def run_decode(paged, query, config, window=None, max_rows=8):
    heads, head_dim = query.shape[1:]
    kv_heads = paged.kv.shape[3]
    workspace = decode.decode_workspace(heads, kv_heads, head_dim, max_rows, config, query.device)
    lengths = paged.lengths
    starts = decode.decode_tile_starts(lengths, config.tile, workspace.batch_pad, window)
    out = torch.full_like(query, torch.nan)
    call = PagedAttention(
        query, paged.kv[0], paged.kv[1], paged.tables, lengths, head_dim**-0.5, window, out
    )
    decode.decode_attention(call, starts, workspace, config)
    assert not workspace.counters.any(), "counters must be zero for the next launch"
    return out


@pytest.mark.parametrize(("head_dim", "dtype", "page", "group", "window"), SHAPES)
def test_decode_equals_plain_attention(head_dim, dtype, page, group, window) -> None:
    paged = make_paged(LENGTHS, page, 2, head_dim, dtype)
    query = torch.randn(len(LENGTHS), 2 * group, head_dim, device=device()).to(dtype)
    config = replace(decode_config(head_dim, dtype.itemsize, group), tile=16)
    out = run_decode(paged, query, config, window)
    assert torch.isnan(out[1]).all(), "a row without context is left alone"
    for row, length in enumerate(LENGTHS):
        if length:
            expected = attention(
                query[row : row + 1], paged.keys[row], paged.values[row], head_dim**-0.5, window
            )
            assert relative_error(out[row : row + 1], expected) < tolerance(dtype)


@pytest.mark.parametrize("programs", [1, 2, 5, 16])
@pytest.mark.parametrize("lengths", [[200], [1] * 7, [33, 1, 0, 0], [0, 0, 50, 17]])
def test_decode_does_not_depend_on_how_work_is_shared(lengths, programs) -> None:
    paged = make_paged(lengths, 16, 1, 64, torch.float32)
    query = torch.randn(len(lengths), 2, 64, device=device())
    config = DecodeConfig(16, 4, 2, programs)
    out = run_decode(paged, query, config)
    for row, length in enumerate(lengths):
        if length:
            expected = attention(query[row : row + 1], paged.keys[row], paged.values[row], 64**-0.5)
            assert relative_error(out[row : row + 1], expected) < tolerance(torch.float32)


def test_decode_of_no_rows_does_nothing() -> None:
    paged = make_paged([5], 16, 1, 64, torch.float32)
    config = DecodeConfig(16, 4, 2, 1)
    workspace = decode.decode_workspace(2, 1, 64, 4, config, device())
    none = paged.lengths[:0]
    starts = decode.decode_tile_starts(none, 16, workspace.batch_pad)
    query = torch.empty(0, 2, 64, device=device())
    call = PagedAttention(
        query, paged.kv[0], paged.kv[1], paged.tables[:0], none, 1.0, None, torch.empty_like(query)
    )
    decode.decode_attention(call, starts, workspace, config)
    assert starts.tolist() == [0]


def test_tile_starts_count_only_tiles_inside_the_window() -> None:
    lengths = torch.tensor([0, 1, 16, 17, 100], dtype=torch.int32, device=device())
    assert decode.decode_tile_starts(lengths, 16, 8).tolist() == [0, 0, 1, 2, 4, 11]
    # Of 100 positions a window of 20 begins at 80, in tile 5 of 0..6.
    assert decode.decode_tile_starts(lengths, 16, 8, 20).tolist() == [0, 0, 1, 2, 4, 6]


def run_prefill(paged, query, query_lens, first_row, config, window=None, spare=0):
    heads, head_dim = query.shape[1:]
    group = heads // paged.kv.shape[3]
    starts = torch.tensor([0, *query_lens], device=device()).cumsum(0).to(torch.int32)
    tokens = prefill.query_tokens_per_tile(config, group)
    rows = len(query_lens) - first_row
    tiles = prefill.prefill_tile_starts(starts, first_row, rows, tokens, 8)
    out = torch.full_like(query, torch.nan)
    num_tiles = sum(-(-n // tokens) for n in query_lens[first_row:])
    assert int(tiles[-1]) == num_tiles
    call = PagedAttention(
        query, paged.kv[0], paged.kv[1], paged.tables, paged.lengths, head_dim**-0.5, window, out
    )
    tiles = prefill.PrefillTiles(starts, tiles, num_tiles + spare, first_row, 8)
    prefill.prefill_attention(call, tiles, config)
    return out, starts.tolist()


@pytest.mark.parametrize(
    ("head_dim", "dtype", "page", "group", "window"),
    [*SHAPES[::2], *[pytest.param(*shape, marks=slow_in_interpreter) for shape in SHAPES[1::2]]],
)
def test_prefill_over_a_prefix_equals_plain_attention(head_dim, dtype, page, group, window) -> None:
    # The first two rows decode; then a whole prompt, a chunk, one token, a chunk after a prefix.
    lengths, query_lens = [9, 1, 37, 64, 16, 70], [1, 1, 37, 33, 1, 21]
    paged = make_paged(lengths, page, 2, head_dim, dtype, seed=1)
    query = torch.randn(sum(query_lens), 2 * group, head_dim, device=device()).to(dtype)
    config = PrefillConfig(max(16, next_power_of_2(4 * group)), 16, 4, 2)
    out, starts = run_prefill(paged, query, query_lens, 2, config, window, spare=1)
    assert torch.isnan(out[:2]).all(), "rows before the first are left alone"
    for row in range(2, len(lengths)):
        part = slice(starts[row], starts[row + 1])
        expected = attention(
            query[part], paged.keys[row], paged.values[row], head_dim**-0.5, window
        )
        assert relative_error(out[part], expected) < tolerance(dtype)


def test_query_tiles_fit_the_bound_for_a_captured_grid() -> None:
    for lens in ([1], [5, 5, 5], [16, 17, 1, 40]):
        exact = sum(-(-n // 16) for n in lens)
        assert exact <= prefill.max_query_tiles(sum(lens), len(lens), 16) <= sum(lens)


@pytest.mark.parametrize("tma", [False, True])
def test_copy_engine_reads_the_same_tiles(tma) -> None:
    paged = make_paged([40, 16], 32, 2, 64, torch.float16)
    query = torch.randn(2, 4, 64, device=device()).half()
    out = run_decode(paged, query, DecodeConfig(16, 4, 2, 2, tma=tma))
    config = PrefillConfig(16, 16, 4, 2, tma=tma)
    both, _ = run_prefill(paged, query, [1, 1], 0, config)
    for row in range(2):
        expected = attention(query[row : row + 1], paged.keys[row], paged.values[row], 64**-0.5)
        assert relative_error(out[row : row + 1], expected) < tolerance(torch.float16)
        assert relative_error(both[row : row + 1], expected) < tolerance(torch.float16)
