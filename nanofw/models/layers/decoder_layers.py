"""The layers of a decoder: attention and feed-forward part, their norms, the residual stream."""

from __future__ import annotations

from typing import Any

import torch

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers.attention import Attention, ForwardInputs
from nanofw.models.layers.features import DecoderFeatures
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import Targets, joined
from nanofw.models.layers.mlp import GatedMLP, PlainMLP
from nanofw.models.layers.norm import LayerNorm, Norm, RMSNorm
from nanofw.models.layers.rope import RotaryEmbedding


def make_norm(config: ModelConfig, features: DecoderFeatures) -> Norm:
    """A norm of hidden states, as the family has them."""
    size, eps = config.spec.hidden_size, config.spec.norm_eps
    kinds: dict[str, Any] = {"dtype": config.dtype, "device": config.device}
    if features.norm_kind.startswith("rms"):
        return RMSNorm(size, eps, plus_one=features.norm_kind == "rms_plus_one", **kinds)
    return LayerNorm(size, eps, bias=features.norm_kind == "layer_bias", **kinds)


class DecoderLayer(Layer):
    """Attention and feed-forward part, each behind a norm and beside the residual stream.

    Attributes:
        gives_parts: what `forward` returns first is this rank's part of a sum over ranks.
    """

    gives_parts = True

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        rope: RotaryEmbedding,
        features: DecoderFeatures,
    ) -> None:
        super().__init__()
        self._ranks, self._residual_scale = config.communicator, features.residual_scale
        self._names = features.norms
        self.self_attn: Attention = Attention(
            config, layer, rope, features, is_partial=self.gives_parts
        )
        self.mlp: GatedMLP | PlainMLP = self._make_mlp(config, features)
        self._make_norms(config, features)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: ForwardInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the feed-forward part's output, and the residual stream.

        Args:
            hidden: [t, hidden], such a part of the layer before; with no residual stream yet,
                the embedded tokens.
        """
        hidden, residual = self._normed_input(hidden, residual)
        hidden = self.self_attn(hidden, inputs)
        hidden, residual = self.post_attention_layernorm.add_parts_and_norm(
            hidden, residual, self._ranks
        )
        return self.mlp(hidden), residual

    def _normed_input(
        self, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What goes into the first part, and the residual stream with the layer before added."""
        if residual is None:
            return self.input_layernorm(hidden), hidden
        return self.input_layernorm.add_parts_and_norm(hidden, residual, self._ranks)

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(
            self.self_attn.targets(f"{prefix}self_attn."),
            self.mlp.targets(f"{prefix}mlp."),
            *(
                norm.targets(f"{prefix}{name}.weight")
                for name, norm in self._norms().items()
                if norm is not None and name is not None
            ),
        )

    def _make_norms(self, config: ModelConfig, features: DecoderFeatures) -> None:
        self.input_layernorm: Norm = make_norm(config, features)
        self.post_attention_layernorm: Norm = make_norm(config, features)

    def _norms(self) -> dict[str | None, Norm | None]:
        """The norms by the checkpoint's names for them."""
        names = self._names
        return {
            names.before_attention: self.input_layernorm,
            names.before_mlp: self.post_attention_layernorm,
        }

    def _make_mlp(self, config: ModelConfig, features: DecoderFeatures) -> GatedMLP | PlainMLP:
        spec = config.spec
        sizes = spec.hidden_size, spec.intermediate_size
        if features.plain_mlp is not None:
            return PlainMLP(
                *sizes, config, names=features.plain_mlp, activation=spec.activation,
                bias=features.mlp_bias, is_partial=self.gives_parts,
            )  # fmt: skip
        return GatedMLP(
            *sizes, config, activation=spec.activation, bias=features.mlp_bias,
            is_partial=self.gives_parts, is_fused=features.fused_gate,
        )  # fmt: skip


class ScaledLayer(DecoderLayer):
    """What comes out of both parts is multiplied by a number before it is added."""

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: ForwardInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As that of `DecoderLayer`."""
        hidden, residual = self._normed_input(hidden, residual)
        hidden = self.self_attn(hidden, inputs) * self._residual_scale
        hidden, residual = self.post_attention_layernorm.add_parts_and_norm(
            hidden, residual, self._ranks
        )
        return self.mlp(hidden) * self._residual_scale, residual


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward part beside each other, behind one norm."""

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: ForwardInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As that of `DecoderLayer`."""
        hidden, residual = self._normed_input(hidden, residual)
        return self.self_attn(hidden, inputs) + self.mlp(hidden), residual

    def _make_norms(self, config: ModelConfig, features: DecoderFeatures) -> None:
        self.input_layernorm: Norm = make_norm(config, features)

    def _norms(self) -> dict[str | None, Norm | None]:
        return {self._names.before_attention: self.input_layernorm}


class OutputNormLayer(DecoderLayer):
    """What comes out of both parts is normalised before it is added; what goes in may be, too.

    A norm of the outputs needs their sum over ranks.
    """

    gives_parts = False
    before_attention: Norm | None
    before_mlp: Norm | None

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: ForwardInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The feed-forward part's output, and the residual stream.

        Args:
            hidden: [t, hidden], that of the layer before; with no residual stream yet, the
                embedded tokens.
        """
        hidden, residual = _enter(self.before_attention, hidden, residual)
        hidden = self.after_attention(self.self_attn(hidden, inputs))
        hidden, residual = _enter(self.before_mlp, hidden, residual)
        return self.after_mlp(self.mlp(hidden)), residual

    def _make_norms(self, config: ModelConfig, features: DecoderFeatures) -> None:
        names = features.norms
        has_first, has_second = names.before_attention is not None, names.before_mlp is not None
        self.before_attention: Norm | None = make_norm(config, features) if has_first else None
        self.after_attention: Norm = make_norm(config, features)
        self.before_mlp: Norm | None = make_norm(config, features) if has_second else None
        self.after_mlp: Norm = make_norm(config, features)

    def _norms(self) -> dict[str | None, Norm | None]:
        names = self._names
        return {
            names.before_attention: self.before_attention,
            names.after_attention: self.after_attention,
            names.before_mlp: self.before_mlp,
            names.after_mlp: self.after_mlp,
        }


def layer_class(features: DecoderFeatures) -> type[DecoderLayer]:
    """The kind of layer that has these features."""
    if features.is_parallel:
        return ParallelLayer
    if not features.norms.are_before_only:
        return OutputNormLayer
    return DecoderLayer if features.residual_scale == 1.0 else ScaledLayer


def _enter(
    norm: Norm | None, hidden: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes into a part of a layer, and the residual stream with `hidden` added in place."""
    if residual is None:
        return (hidden if norm is None else norm(hidden)), hidden
    if norm is not None:
        return norm.add_and_norm(hidden, residual)
    residual += hidden
    return residual, residual
