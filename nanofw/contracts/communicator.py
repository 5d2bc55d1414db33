"""What tensor parallel layers need of the ranks beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Communicator(Protocol):
    """Passed into each layer that is split over ranks; never looked up from a global."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place where it can be; returns the sum."""
        ...

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenate the ranks' tensors along `dim`, in rank order."""
        ...


@runtime_checkable
class NormCommunicator(Communicator, Protocol):
    """One that can also sum, add to the residual stream and normalise in one go."""

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
