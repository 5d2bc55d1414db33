"""Ranks of a tensor parallel run as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class ThreadRank:
    """A communicator whose ranks are threads that meet at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._board = barrier, board

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(tensor)).sum(0)

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(self._exchange(tensor), dim=dim)

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._board[self.rank] = tensor
        self._barrier.wait()
        tensors = list(self._board)
        self._barrier.wait()
        return tensors


def on_ranks(size: int, function: Callable[[ThreadRank], T]) -> list[T]:
    """What `function` returns on each rank."""
    barrier, board = threading.Barrier(size, timeout=30), [None] * size
    ranks = [ThreadRank(rank, size, barrier, board) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, ranks))
