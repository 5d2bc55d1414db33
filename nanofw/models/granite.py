"""Granite 3, dense: Llama with multipliers of embeddings, residuals, scores and logits.

Granite team, "Granite 3.0 Language Models".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class GraniteForCausalLM(Decoder):
    """Constructed as `GraniteForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        spec = config.spec
        bias = spec.attention_bias
        features = DecoderFeatures(
            qkv_bias=bias, out_bias=bias, mlp_bias=spec.mlp_bias, **spec.family_values
        )
        super().__init__(config, features)
