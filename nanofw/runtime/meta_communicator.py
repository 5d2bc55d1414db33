"""The other ranks, where tensors have no content."""

from __future__ import annotations

import torch


class MetaCommunicator:
    """Stands for a rank's communicator on tensors of the device `meta`: shapes alone."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous()

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat([tensor] * self.size, dim=dim)
