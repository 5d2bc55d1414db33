"""The gated feed-forward part of a decoder layer."""

from __future__ import annotations

import torch

from nanofw.contracts.model import ModelConfig
from nanofw.kernels.activation import silu_and_mul
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from nanofw.models.layers.loading import Targets, joined


class GatedMLP(Layer):
    """down(silu(gate(x)) * up(x)), gate and up in one product.

    Shazeer, "GLU Variants Improve Transformer". With `is_partial`, the output is this rank's part
    of the sum over ranks.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        config: ModelConfig,
        *,
        bias: bool = False,
        is_partial: bool = False,
    ) -> None:
        super().__init__()
        kinds = {"dtype": config.dtype, "device": config.device}
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, (intermediate_size, intermediate_size), ("gate_proj", "up_proj"),
            bias=bias, communicator=config.communicator, **kinds,
        )  # fmt: skip
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, "down_proj",
            bias=bias, is_partial=is_partial, communicator=config.communicator, **kinds,
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[t, hidden] to the same."""
        return self.down_proj(silu_and_mul(self.gate_up_proj(hidden)))

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(self.gate_up_proj.targets(prefix), self.down_proj.targets(prefix))
