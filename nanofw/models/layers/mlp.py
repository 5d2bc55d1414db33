"""The feed-forward part of a decoder layer, gated or plain."""

from __future__ import annotations

import torch

from nanofw.contracts.model import ModelConfig
from nanofw.kernels.activation import ACTIVATIONS, GATED_ACTIVATIONS
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from nanofw.models.layers.loading import Targets, joined


class GatedMLP(Layer):
    """down(activation(gate(x)) * up(x)), gate and up in one product.

    Shazeer, "GLU Variants Improve Transformer". With `is_partial`, the output is this rank's part
    of the sum over ranks.

    Args:
        is_fused: the checkpoint keeps gate and up as one matrix, `gate_up_proj`.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        config: ModelConfig,
        *,
        activation: str = "silu",
        bias: bool = False,
        is_partial: bool = False,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        kinds = {"dtype": config.dtype, "device": config.device}
        self._activate = GATED_ACTIVATIONS[activation]
        self.gate_up_proj: MergedColumnParallelLinear = MergedColumnParallelLinear(
            hidden_size, (intermediate_size, intermediate_size), ("gate_proj", "up_proj"),
            fused_name="gate_up_proj" if is_fused else None,
            bias=bias, communicator=config.communicator, **kinds,
        )  # fmt: skip
        self.down_proj: RowParallelLinear = RowParallelLinear(
            intermediate_size, hidden_size, "down_proj",
            bias=bias, is_partial=is_partial, communicator=config.communicator, **kinds,
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[t, hidden] to the same."""
        return self.down_proj(self._activate(self.gate_up_proj(hidden)))

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(self.gate_up_proj.targets(prefix), self.down_proj.targets(prefix))


class PlainMLP(Layer):
    """second(activation(first(x))). Arguments as those of `GatedMLP`.

    Args:
        names: of the two projections in the checkpoint.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        config: ModelConfig,
        *,
        names: tuple[str, str],
        activation: str,
        bias: bool = False,
        is_partial: bool = False,
    ) -> None:
        super().__init__()
        kinds = {"dtype": config.dtype, "device": config.device}
        self._activate = ACTIVATIONS[activation]
        self.first: MergedColumnParallelLinear = MergedColumnParallelLinear(
            hidden_size, (intermediate_size,), names[:1],
            bias=bias, communicator=config.communicator, **kinds,
        )  # fmt: skip
        self.second: RowParallelLinear = RowParallelLinear(
            intermediate_size, hidden_size, names[1],
            bias=bias, is_partial=is_partial, communicator=config.communicator, **kinds,
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[t, hidden] to the same."""
        return self.second(self._activate(self.first(hidden)))

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(self.first.targets(prefix), self.second.targets(prefix))
