"""RMSNorm and LayerNorm with weights from the checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from nanofw.contracts.communicator import Communicator
from nanofw.kernels.norm import add_rms_norm, rms_norm
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import Targets, empty_parameter, fill


class Norm(Layer):
    """What a decoder does with a norm, alone or after an addition to the residual stream."""

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""

    @abstractmethod
    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add [t, size] `x` to the residual stream in place; the normed sum, and the sum."""

    def add_parts_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, communicator: Communicator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `add_and_norm`, of the sum of the ranks' `x`."""
        return self.add_and_norm(communicator.all_reduce(x), residual)

    @abstractmethod
    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes, and what lies beside it."""


class RMSNorm(Norm):
    """Scales vectors of `size` elements to a root mean square of one, times the weight.

    Args:
        plus_one: the checkpoint keeps the weight less one. The sum is kept in float32, since in
            half precision it would lose what the checkpoint says.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        plus_one: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.eps = eps
        self._plus_one = plus_one
        kept = torch.float32 if plus_one else dtype
        self.weight: nn.Parameter = empty_parameter(size, dtype=kept, device=device)

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
        if at_once is not None and not self._plus_one:
            return at_once(x, residual, self.weight, self.eps)
        return self.add_and_norm(communicator.all_reduce(x), residual)

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes."""
        return {name: self._load}

    def _load(self, tensor: torch.Tensor) -> None:
        fill(self.weight, self.weight, tensor)
        if self._plus_one:
            with torch.no_grad():
                self.weight.add_(1)


class LayerNorm(Norm):
    """Vectors of `size` elements with mean zero and variance one, times the weight, plus a bias.

    Ba, Kiros and Hinton, "Layer Normalization".
    """

    bias: nn.Parameter | None

    def __init__(
        self, size: int, eps: float, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight: nn.Parameter = empty_parameter(size, dtype=dtype, device=device)
        self.bias = empty_parameter(size, dtype=dtype, device=device) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add [t, size] `x` to the residual stream in place; the normed sum, and the sum."""
        residual += x
        return self.forward(residual), residual

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes, and the bias beside it."""
        result: Targets = {name: partial(fill, self.weight, self.weight)}
        if self.bias is not None:
            result[f"{name.removesuffix('weight')}bias"] = partial(fill, self.bias, self.bias)
        return result
