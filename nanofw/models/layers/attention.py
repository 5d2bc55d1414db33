"""Self-attention of a decoder layer, up to the backend that does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from nanofw.contracts.attention_backend import (
    ForwardBatch,
    FusedAttentionBackend,
    FusedInputs,
)
from nanofw.contracts.model import ModelConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.kernels.answers import checked_tensor
from nanofw.kernels.qk_norm_rope import qk_norm_rope
from nanofw.kernels.rope import Rotation
from nanofw.models.layers.features import DecoderFeatures
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import QKVParallelLinear, RowParallelLinear
from nanofw.models.layers.loading import Targets, joined
from nanofw.models.layers.norm import RMSNorm
from nanofw.models.layers.rope import RotaryEmbedding, head_order


@dataclass(slots=True)
class ForwardInputs:
    """What all layers of one forward pass share.

    Attributes:
        batch: the pass.
        pool: the backend's KV pool, by layer.
        angles: by rope, the rotation of each token; None when the backend's fused entry rotates.
    """

    batch: ForwardBatch
    pool: list[Any]
    angles: Sequence[Rotation | None] | None


class Attention(Layer):
    """Projections, optional norm of queries and keys, rotation, attention, projection.

    Args:
        layer: its index.
        rope: of this layer.
        features: what the family's attention has.
        is_partial: whether the output is this rank's part of the sum over ranks.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        rope: RotaryEmbedding,
        features: DecoderFeatures,
        *,
        is_partial: bool = False,
    ) -> None:
        super().__init__()
        spec, ranks = config.spec, config.communicator
        kinds = {"dtype": config.dtype, "device": config.device}
        self.qkv_proj: QKVParallelLinear = QKVParallelLinear(
            spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim,
            head_order=head_order(spec, interleaved=features.interleaved_rotation),
            fused_name="qkv_proj" if features.fused_projections else None,
            bias=features.qkv_bias, communicator=ranks, **kinds,
        )  # fmt: skip
        self.o_proj: RowParallelLinear = RowParallelLinear(
            spec.num_heads * spec.head_dim, spec.hidden_size, "o_proj",
            bias=features.out_bias, is_partial=is_partial, communicator=ranks, **kinds,
        )  # fmt: skip
        norms = self._make_norms(spec, features, kinds)
        self.q_norm: RMSNorm | None = norms[0]
        self.k_norm: RMSNorm | None = norms[1]
        self._is_normed_whole = features.qk_norm_whole
        self._eps, self._layer, self._rope = spec.norm_eps, layer, rope
        self._backend, self._head_dim = config.attention_backend, spec.head_dim
        scale = features.attention_scale
        self._scale = spec.head_dim**-0.5 if scale is None else scale
        self._fused_backend = cast("FusedAttentionBackend", self._backend)  # used if it is one

    def forward(self, hidden: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        """[t, hidden] to the same."""
        qkv = self.qkv_proj(hidden)
        if self._is_normed_whole:
            qkv = self._normed(qkv)
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
            qkv, query_norm, key_norm, self._eps, inputs.angles[self._rope.index],
            self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads,
        )  # fmt: skip
        layer = self._layer
        attended = self._backend.forward(
            query, key, value, layer, inputs.pool[layer], inputs.batch, self._scale
        )
        return checked_tensor(self._backend, "forward", attended, query.shape, query)

    def _fused(self, qkv: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        query_norm, key_norm = self._norms()
        fused = FusedInputs(
            qkv=qkv,
            query_norm=query_norm,
            key_norm=key_norm,
            norm_eps=self._eps,
            cos_sin=self._rope.cos_sin,
        )
        layer, shape = self._layer, (len(qkv), self.qkv_proj.num_heads, self._head_dim)
        attended = self._fused_backend.forward_fused(
            fused, layer, inputs.pool[layer], inputs.batch, self._scale
        )
        return checked_tensor(self._backend, "forward_fused", attended, shape, qkv)

    def _norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The weights of the norms by head."""
        if self.q_norm is None or self.k_norm is None or self._is_normed_whole:
            return None, None
        return self.q_norm.weight, self.k_norm.weight

    def _make_norms(
        self, spec: ModelSpec, features: DecoderFeatures, kinds: dict[str, Any]
    ) -> tuple[RMSNorm, RMSNorm] | tuple[None, None]:
        if not (features.qk_norm or features.qk_norm_whole):
            return None, None
        sizes = (spec.num_heads, spec.num_kv_heads) if features.qk_norm_whole else (1, 1)
        plus_one = features.norm_kind == "rms_plus_one"
        query, key = (
            RMSNorm(n * spec.head_dim, spec.norm_eps, plus_one=plus_one, **kinds) for n in sizes
        )
        return query, key

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        """Queries and keys, all heads together, normalised; on one rank, which has them all."""
        assert self.q_norm is not None
        assert self.k_norm is not None
        sizes = [self.q_norm.weight.shape[0], self.k_norm.weight.shape[0]]
        query, key, value = qkv.split([*sizes, qkv.shape[1] - sum(sizes)], dim=1)
        return torch.cat((self.q_norm(query), self.k_norm(key), value), dim=1)


def forward_inputs(
    batch: ForwardBatch, pool: list[Any], ropes: Sequence[RotaryEmbedding], config: ModelConfig
) -> ForwardInputs:
    """What the layers of this pass need beside the hidden states.

    Args:
        ropes: of all layers, each once, by their index.
    """
    # FusedAttentionBackend, asked cheaply
    fused = hasattr(config.attention_backend, "forward_fused")
    angles = None if fused else [rope.at(batch.positions, config.dtype) for rope in ropes]
    return ForwardInputs(batch, pool, angles)
