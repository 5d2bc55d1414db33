"""RMSNorm with a weight from the checkpoint."""

from __future__ import annotations

from functools import partial

import torch

from nanofw.contracts.communicator import Communicator
from nanofw.kernels.norm import add_rms_norm, rms_norm
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import Targets, empty_parameter, fill


class RMSNorm(Layer):
    """Scales vectors of `size` elements to a root mean square of one, times the weight."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = empty_parameter(size, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add [t, size] `x` to the residual stream in place; the normed sum, and the sum."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    def add_parts_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, communicator: Communicator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `add_and_norm`, of the sum of the ranks' `x`."""
        at_once = getattr(communicator, "all_reduce_add_rms_norm", None)  # NormCommunicator
        if at_once is not None:
            return at_once(x, residual, self.weight, self.eps)
        return self.add_and_norm(communicator.all_reduce(x), residual)

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes."""
        return {name: partial(fill, self.weight, self.weight)}
