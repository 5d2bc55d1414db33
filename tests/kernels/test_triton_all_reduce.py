"""Sums over ranks through inboxes, between real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import multiprocessing

from nanofw.kernels.all_reduce import Inboxes, inbox_elements
from nanofw.kernels.triton.all_reduce import sum_add_rms_norm
from nanofw.kernels.triton.common import INTERPRETED
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import relative_error, tolerance

pytestmark = pytest.mark.skipif(
    not INTERPRETED, reason="between GPUs: tests/runtime/parallel/test_gpu.py"
)
NUM_ROWS, EPS = 5, 1e-6
BATCHES = (5, 1, 3, 1, 5, 2)


def inputs(rank: int, size: int, width: int, dtype: torch.dtype) -> Any:
    """For each batch: what every rank adds, the residual stream and the weight."""
    generator = torch.Generator().manual_seed(7)
    for rows in BATCHES:
        parts = [torch.randn(rows, width, generator=generator).to(dtype) for _ in range(size)]
        residual = torch.randn(rows, width, generator=generator).to(dtype)
        weight = torch.rand(width, generator=generator).to(dtype)
        yield parts, residual, weight


def run_rank(
    rank: int, size: int, width: int, dtype: torch.dtype, memory: list[torch.Tensor], results: Any
) -> None:
    addresses = torch.tensor([inbox.data_ptr() for inbox in memory])
    sums = torch.zeros(NUM_ROWS, dtype=torch.int32)
    inboxes = Inboxes(rank, size, NUM_ROWS, width, dtype, addresses, sums)
    found = []
    for parts, residual, weight in inputs(rank, size, width, dtype):
        assert inboxes.fit(parts[rank])
        normed, kept = sum_add_rms_norm(parts[rank], residual, weight, EPS, inboxes)
        assert kept.data_ptr() == residual.data_ptr(), "the residual stream is changed in place"
        found.append((normed.float().numpy(), kept.float().numpy()))
    assert sums.tolist() == [sum(rows > row for rows in BATCHES) for row in range(NUM_ROWS)]
    results.put((rank, found))


@pytest.mark.parametrize(
    ("size", "width", "dtype"),
    [
        (2, 8, torch.bfloat16),
        pytest.param(3, 20, torch.float16, marks=slow_in_interpreter),
    ],
)
def test_every_rank_has_the_sum_and_its_norm(size: int, width: int, dtype: torch.dtype) -> None:
    context = multiprocessing.get_context("spawn")
    memory = [
        torch.zeros(inbox_elements(size, NUM_ROWS, width), dtype=torch.int64).share_memory_()
        for _ in range(size)
    ]
    results = context.Queue()
    ranks = [
        context.Process(target=run_rank, args=(rank, size, width, dtype, memory, results))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    by_rank = dict(results.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    for index, (parts, residual, weight) in enumerate(inputs(0, size, width, dtype)):
        total = sum(part.float() for part in parts) + residual.float()
        normed = torch.nn.functional.rms_norm(total, (width,), weight.float(), EPS)
        for rank in range(size):
            ours, kept = map(torch.from_numpy, by_rank[rank][index])
            assert torch.equal(kept, torch.from_numpy(by_rank[0][index][1])), "ranks differ"
            assert relative_error(kept, total) < tolerance(dtype)
            assert relative_error(ours, normed) < tolerance(dtype)


def test_what_does_not_fit() -> None:
    inboxes = Inboxes(0, 2, 4, 8, torch.float16, torch.zeros(2), torch.zeros(4))
    assert inboxes.fit(torch.zeros(4, 8, dtype=torch.float16))
    assert not inboxes.fit(torch.zeros(4, 8))
    assert not inboxes.fit(torch.zeros(5, 8, dtype=torch.float16))
    assert not inboxes.fit(torch.zeros(0, 8, dtype=torch.float16))
    assert not inboxes.fit(torch.zeros(4, 6, dtype=torch.float16))
