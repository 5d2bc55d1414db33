"""The other ranks on a dry run, where tensors have no content."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanofw.contracts.communicator import Communicator, SingleRank
from nanofw.kernels.all_reduce import Inboxes, all_reduce_add_rms_norm


class MetaCommunicator:
    """Stands for a rank's communicator on tensors of the device `meta`: shapes alone."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous()

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat([tensor] * self.size, dim=dim)


class MetaNormCommunicator(MetaCommunicator):
    """The same with the kernel that sums and normalises, launched where the real one does."""

    def __init__(self, rank: int, size: int, inboxes: Inboxes) -> None:
        super().__init__(rank, size)
        self._inboxes = replace(
            inboxes, addresses=inboxes.addresses.to("meta"), sums=inboxes.sums.to("meta")
        )

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `NormCommunicator`."""
        return all_reduce_add_rms_norm(self, self._inboxes, x, residual, weight, eps)


def on_meta(communicator: Communicator) -> Communicator:
    """What stands for a communicator on a dry run."""
    if communicator.size == 1:
        return SingleRank()
    inboxes: Inboxes | None = getattr(communicator, "inboxes", None)
    if inboxes is not None:
        return MetaNormCommunicator(communicator.rank, communicator.size, inboxes)
    return MetaCommunicator(communicator.rank, communicator.size)
