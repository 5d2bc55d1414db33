"""Self-attention of a decoder layer, up to the backend that does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from nanofw.contracts.attention_backend import (
    ForwardBatch,
    FusedAttentionBackend,
    FusedInputs,
)
from nanofw.contracts.model import ModelConfig
from nanofw.kernels.qk_norm_rope import qk_norm_rope
from nanofw.kernels.rope import Rotation
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import QKVParallelLinear, RowParallelLinear
from nanofw.models.layers.loading import Targets, joined
from nanofw.models.layers.norm import RMSNorm
from nanofw.models.layers.rope import RotaryEmbedding


@dataclass(slots=True)
class ForwardInputs:
    """What all layers of one forward pass share.

    Attributes:
        batch: the pass.
        pool: the backend's KV pool, by layer.
        angles: the rotation of each token; None when the backend's fused entry rotates.
    """

    batch: ForwardBatch
    pool: list[Any]
    angles: Rotation | None


class Attention(Layer):
    """Projections, optional norm of queries and keys, rotation, attention, projection.

    Args:
        layer: its index.
        qk_norm: whether queries and keys are normalised by head.
        qkv_bias, out_bias: whether the projections have biases.
        is_partial: whether the output is this rank's part of the sum over ranks.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        rope: RotaryEmbedding,
        *,
        qk_norm: bool,
        qkv_bias: bool,
        out_bias: bool,
        is_partial: bool = False,
    ) -> None:
        super().__init__()
        spec, ranks = config.spec, config.communicator
        kinds = {"dtype": config.dtype, "device": config.device}
        self.qkv_proj = QKVParallelLinear(
            spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim,
            bias=qkv_bias, communicator=ranks, **kinds,
        )  # fmt: skip
        self.o_proj = RowParallelLinear(
            spec.num_heads * spec.head_dim, spec.hidden_size, "o_proj",
            bias=out_bias, is_partial=is_partial, communicator=ranks, **kinds,
        )  # fmt: skip
        self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps, **kinds) if qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps, **kinds) if qk_norm else None
        self._eps, self._layer, self._rope = spec.norm_eps, layer, rope
        self._backend, self._scale = config.attention_backend, spec.head_dim**-0.5
        self._fused_backend = cast("FusedAttentionBackend", self._backend)  # used if it is one

    def forward(self, hidden: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        """[t, hidden] to the same."""
        qkv = self.qkv_proj(hidden)
        attended = self._fused(qkv, inputs) if inputs.angles is None else self._plain(qkv, inputs)
        return self.o_proj(attended.reshape(hidden.shape[0], -1))

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        norms = {"q_norm": self.q_norm, "k_norm": self.k_norm}
        return joined(
            self.qkv_proj.targets(prefix),
            self.o_proj.targets(prefix),
            *(norm.targets(f"{prefix}{n}.weight") for n, norm in norms.items() if norm is not None),
        )

    def _plain(self, qkv: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        assert inputs.angles is not None
        query_norm, key_norm = self._norms()
        query, key, value = qk_norm_rope(
            qkv, query_norm, key_norm, self._eps, inputs.angles,
            self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads,
        )  # fmt: skip
        return self._backend.forward(
            query, key, value, self._layer, inputs.pool[self._layer], inputs.batch, self._scale
        )

    def _fused(self, qkv: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        query_norm, key_norm = self._norms()
        fused = FusedInputs(
            qkv=qkv,
            query_norm=query_norm,
            key_norm=key_norm,
            norm_eps=self._eps,
            cos_sin=self._rope.cos_sin,
        )
        return self._fused_backend.forward_fused(
            fused, self._layer, inputs.pool[self._layer], inputs.batch, self._scale
        )

    def _norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.q_norm is None or self.k_norm is None:
            return None, None
        return self.q_norm.weight, self.k_norm.weight


def forward_inputs(
    batch: ForwardBatch, pool: list[Any], rope: RotaryEmbedding, config: ModelConfig
) -> ForwardInputs:
    """What the layers of this pass need beside the hidden states."""
    # FusedAttentionBackend, asked cheaply
    fused = hasattr(config.attention_backend, "forward_fused")
    angles = None if fused else rope.at(batch.positions, config.dtype)
    return ForwardInputs(batch, pool, angles)
