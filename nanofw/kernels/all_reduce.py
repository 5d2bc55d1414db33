"""The ranks' sum of a tensor, added to the residual stream and normalised, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanofw.contracts.communicator import Communicator
from nanofw.kernels.norm import add_rms_norm

NUM_TURNS = 2
"""Inboxes that a rank uses in turn."""


@dataclass(frozen=True, slots=True)
class Inboxes:
    """What a rank needs to send and to receive.

    Attributes:
        rank, size: which rank this is, of how many.
        num_rows, width: the largest [rows, width] tensor that is summed.
        dtype: of the tensors that are summed, 16 bits wide.
        addresses: int64[size], of each rank's inbox in this process; an inbox is zeroed
            int64[NUM_TURNS, size, num_rows, width / 2] memory.
        sums: int32[num_rows], how many sums each row took part in; starts at zero.
    """

    rank: int
    size: int
    num_rows: int
    width: int
    dtype: torch.dtype
    addresses: torch.Tensor
    sums: torch.Tensor

    def fit(self, x: torch.Tensor) -> bool:
        """Whether [rows, width] `x` can be summed through them."""
        num_rows, width = x.shape
        return x.dtype == self.dtype and 0 < num_rows <= self.num_rows and width == self.width


def inbox_elements(size: int, num_rows: int, width: int) -> int:
    """int64 elements of one inbox."""
    return NUM_TURNS * size * num_rows * (width // 2)


def all_reduce_add_rms_norm(
    communicator: Communicator,
    inboxes: Inboxes | None,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `NormCommunicator`. One kernel where `x` fits the inboxes, else the norm follows."""
    if inboxes is not None and inboxes.fit(x):
        from nanofw.kernels.triton.all_reduce import sum_add_rms_norm

        return sum_add_rms_norm(x, residual, weight, eps, inboxes)
    return add_rms_norm(communicator.all_reduce(x), residual, weight, eps)
