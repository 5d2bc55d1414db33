"""What tensor parallel layers need of the other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Communicator(Protocol):
    """The connection between ranks. Each layer that is split over ranks gets it as an argument."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place if possible; returns the sum."""
        ...

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenate the ranks' tensors along `dim`, in rank order."""
        ...


@runtime_checkable
class NormCommunicator(Communicator, Protocol):
    """A communicator that can also sum, add to the residual and normalise in one call."""

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the ranks' sum of `x` [t, d] to `residual` [t, d], in place, and take its RMSNorm.

        Returns:
            The normalised sum, and the sum itself; the same on every rank.
        """
        ...


class SingleRank:
    """The communicator of a run on one device: does nothing."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return tensor
