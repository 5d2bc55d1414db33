"""Draws on parts of the vocabulary, in Triton and in torch, equal those from all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nanofw.contracts.model_spec import vocabulary_of_rank
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.samplers.standard import StandardSampler
from nanofw.samplers.standard_cuda import CudaSampler
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import device

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TEMPERATURES = (0.0, 1.0, 0.4, 1.7, 0.0)


class NotYet(Exception):
    """Not every rank has come to this exchange."""


class InTurn:
    """Ranks that run one after another, each again from its start until all have met."""

    def __init__(self, rank: int, board: list[dict[int, torch.Tensor]], size: int) -> None:
        self.rank, self.size, self._board = rank, size, board
        self.num_exchanges = 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a draw sums nothing")

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if self.num_exchanges == len(self._board):
            self._board.append({})
        parts = self._board[self.num_exchanges]
        self.num_exchanges += 1
        parts[self.rank] = tensor
        if len(parts) < self.size:
            raise NotYet
        return torch.cat([parts[rank] for rank in range(self.size)], dim=dim)


def filled(kind: Any, vocab: int, communicator: Any) -> Any:
    config = SamplerConfig(
        vocab_size=vocab, max_num_seqs=8, max_model_len=64, device=device(),
        communicator=communicator,
    )  # fmt: skip
    sampler = kind(None, config)
    for row, temperature in enumerate(TEMPERATURES):
        sampler.add_row(
            NewRow(
                row=row, request_id=str(row), token_ids=np.array([1], np.int32),
                num_prompt_tokens=1, block_ids=np.array([0], np.int32), seed=row + 5,
                sampling=SamplingParams(temperature=temperature),
            )
        )  # fmt: skip
    return sampler


def draw_on_ranks(kind: Any, logits: torch.Tensor, size: int) -> list[Any]:
    """What each rank draws from its part."""
    vocab = logits.shape[1]
    rows = np.arange(len(TEMPERATURES), dtype=np.int32)
    board: list[dict[int, torch.Tensor]] = []
    drawn: dict[int, Any] = {}
    while len(drawn) < size:
        for rank in range(size):
            tokens = vocabulary_of_rank(vocab, rank, size)
            sampler = filled(kind, vocab, InTurn(rank, board, size))
            part = logits[:, tokens.start : tokens.stop].clone()
            try:
                if kind is CudaSampler:
                    sampler.sync()
                    on_device = torch.from_numpy(rows).long().to(device())
                    variant = sampler.variant(rows)
                    assert variant in sampler.shard_variants
                    drawn[rank] = sampler.sample_on_device(
                        part, on_device, on_device + 3, variant, sharded=True
                    )
                else:
                    assert sampler.can_shard(rows)
                    drawn[rank] = sampler.sample(part, rows, rows + 3, sharded=True)
            except NotYet:
                continue
    return [drawn[rank] for rank in range(size)]


@pytest.mark.parametrize("kind", [StandardSampler, CudaSampler])
@pytest.mark.parametrize(
    ("vocab", "size", "times"),
    [
        (41, 2, 1),
        *[
            pytest.param(*case, marks=slow_in_interpreter)
            for case in ((41, 2, 4), (40, 2, 4), (101, 4, 4))
        ],
    ],
)
def test_ranks_draw_what_one_draws(kind: Any, vocab: int, size: int, times: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rows = np.arange(len(TEMPERATURES), dtype=np.int32)
    for _ in range(times):
        logits = (torch.randn(len(rows), vocab, generator=generator) * 2).to(device())
        logits[4] = 0.5  # all equal: the lowest id wins
        logits[3, vocab - 1] = torch.nan  # a failed row, seen by the last rank alone
        expected = filled(kind, vocab, None).sample(logits.clone(), rows, rows + 3)
        for drawn in draw_on_ranks(kind, logits, size):
            assert drawn.token_ids.tolist() == expected.token_ids.tolist()
            assert drawn.failed.tolist() == [False, False, False, True, False]
            assert drawn.token_ids.dtype == torch.int32
        assert expected.token_ids[4] == 0


def test_ranks_without_tokens_gather() -> None:
    """Nine tokens over four ranks: 3, 3, 3 and none."""
    sampler = filled(CudaSampler, 9, InTurn(0, [], 4))
    assert sampler.shard_variants == ()
    sampler = filled(StandardSampler, 9, InTurn(0, [], 4))
    assert not sampler.can_shard(np.array([0], np.int32))
