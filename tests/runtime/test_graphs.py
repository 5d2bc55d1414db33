from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.runtime.graphs.sizes import (
    buckets,
    describe,
    launch_bound_tokens,
    max_chunks,
    num_padded_rows,
    telling_sizes,
    token_buckets,
)
from nanofw.runtime.options import TorchOptions
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import executor_config


def test_B080_every_batch_size_has_a_bucket() -> None:
    for max_num_seqs in range(1, 601):
        sizes = buckets(max_num_seqs)
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, max_num_seqs)
        for n in range(1, max_num_seqs + 1):
            bucket = sizes[bisect_left(sizes, n)]
            assert n <= bucket <= n + max(7, n // 4), "padding stays small"


def test_the_number_of_graphs_stays_small() -> None:
    assert len(buckets(256)) <= 24
    assert len(buckets(1024)) <= 48
    assert buckets(1056)[-4:] == [960, 992, 1024, 1056]
    for size in (10**6, 10**18 + 1):
        for sizes in (buckets(size), token_buckets(size)):
            assert len(sizes) <= 2500
            assert sizes == sorted(set(sizes))
            assert sizes[-1] == size
            steps = itertools.pairwise(sizes)
            assert all(large <= small + max(256, small // 8) for small, large in steps)


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        buckets(0)


def test_every_number_of_tokens_has_a_bucket_and_there_are_few() -> None:
    for largest in range(1, 1200):
        sizes = token_buckets(largest)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == largest
        assert len(sizes) <= 5 + max(0, largest - 512) / 256 + 1
    assert token_buckets(512) == [64, 128, 256, 384, 512]
    assert token_buckets(0) == []


def test_the_lines_of_a_prefill_graph_are_those_of_a_draw() -> None:
    """A draw reads as many lines as its own bucket has: none may be left from a step before."""
    for max_num_seqs in (1, 3, 60, 100, 256):
        sizes = buckets(max_num_seqs)
        for num_tokens in range(1, 600):
            num_rows = num_padded_rows(num_tokens, sizes)
            assert num_rows in sizes
            for num_sampled in range(1, min(num_tokens, max_num_seqs) + 1, 7):
                assert num_padded_rows(num_sampled, sizes) <= num_rows


def test_what_is_captured_is_told_by_kind(tmp_path: Path) -> None:
    write_qwen3(tmp_path)

    def told(tokens: int | None = 512, **switches: Any) -> list[Any]:
        options = TorchOptions(prefill_graph_tokens=tokens)
        config: ExecutorConfig = executor_config(
            tmp_path, max_num_seqs=256, max_num_batched_tokens=8192, **switches
        )
        return [(item["count"], item["sizes"]) for item in describe(options, config)]

    assert told() == []
    decode, draw, prefill = told(cuda_graphs=True, prefill_graphs=True)
    assert decode == draw == (len(buckets(256)), "1, 2, 4, 8, ..., 256 rows")
    assert prefill == (5, "64, 128, 256, 384, 512 tokens, up to 16 prompts")
    small = told(None, cuda_graphs=True, prefill_graphs=True)[2]
    assert small == (27, "64, 128, 256, 384, ..., 8192 tokens, up to 128 prompts")
    assert told(cuda_graphs=True)[2] == (0, "prefill_graphs is off")
    off = told(0, cuda_graphs=True, prefill_graphs=True)
    assert off[2] == (0, "executor.prefill_graph_tokens is 0")


@pytest.mark.parametrize(
    ("hidden", "inner", "heads", "tokens"),
    [(1024, 3072, 16, 16384), (4096, 12288, 32, 2048), (8192, 28672, 64, 512)],
)
def test_small_layers_are_captured_up_to_more_tokens(
    hidden: int, inner: int, heads: int, tokens: int
) -> None:
    """A step whose kernels outlast their launches gains nothing from a graph."""
    spec = ModelSpec(
        architecture="any", path="", dtype="bfloat16", vocab_size=32, hidden_size=hidden,
        intermediate_size=inner, num_layers=30, num_heads=heads, num_kv_heads=8, head_dim=128,
        max_model_len=64,
    )  # fmt: skip
    assert launch_bound_tokens(spec) == tokens
    assert launch_bound_tokens(replace(spec, num_layers=60)) == tokens


def test_a_dry_run_carries_out_one_step_of_every_number_of_rows() -> None:
    sizes, rows = token_buckets(2048), buckets(256)
    assert telling_sizes(sizes, rows) == [64, 128, 256, 2048]
    assert telling_sizes(sizes, buckets(100)) == [64, 128, 2048]
    assert telling_sizes([40], rows) == [40]


def test_larger_steps_take_more_prompts() -> None:
    assert [max_chunks(size) for size in (64, 512, 1024, 2048, 4096)] == [16, 16, 16, 32, 64]
