"""Qwen3 with experts: each token's feed-forward part is a few of many.

Yang et al., "Qwen3 Technical Report". The decoder is nanofw's; its feed-forward parts are replaced.
"""

from __future__ import annotations

import torch
from torch import nn

from nanofw.models.layers import (
    Decoder,
    DecoderFeatures,
    GatedMLP,
    Layer,
    Linear,
    Targets,
    fill,
    joined,
)
from nanofw.plugins import ModelConfig


class Router(Linear):
    """One score for each expert; the same on every rank."""

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes."""
        weight = self.weight
        assert weight is not None
        return {name: lambda tensor: fill(weight, weight, tensor)}


class Experts(Layer):
    """A weighted sum of the experts that a token is given to."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        spec = config.spec
        self._chosen = spec.family_values["num_chosen"]
        self._is_normed = spec.family_values["norm_topk_prob"]
        number = spec.family_values["num_experts"]
        self.gate = Router(spec.hidden_size, number, dtype=config.dtype, device=config.device)
        sizes = spec.hidden_size, spec.intermediate_size
        self._parts = [
            GatedMLP(*sizes, config, activation=spec.activation, is_partial=True)
            for _ in range(number)
        ]
        self.experts = nn.ModuleList(self._parts)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[t, hidden] to this rank's part of the same."""
        shares, chosen = self.gate(hidden).float().softmax(-1).topk(self._chosen)
        if self._is_normed:
            shares = shares / shares.sum(-1, keepdim=True)
        shares, out = shares.to(hidden.dtype), torch.zeros_like(hidden)
        for number in chosen.unique().tolist():
            tokens, place = (chosen == number).nonzero(as_tuple=True)
            part = self._parts[number](hidden[tokens])
            out.index_add_(0, tokens, part * shares[tokens, place, None])
        return out

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` go."""
        return joined(
            self.gate.targets(f"{prefix}gate.weight"),
            *(part.targets(f"{prefix}experts.{i}.") for i, part in enumerate(self._parts)),
        )


class Qwen3MoeForCausalLM(Decoder):
    def __init__(self, options: None, config: ModelConfig) -> None:
        bias = config.spec.attention_bias
        features = DecoderFeatures(qk_norm=True, qkv_bias=bias, out_bias=bias)
        super().__init__(config, features)
        for layer in self.layers:
            layer.mlp = Experts(config)
