"""SmolLM3: Llama whose every fourth layer knows no positions.

Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class SmolLM3ForCausalLM(Decoder):
    """Constructed as `SmolLM3ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        bias, mlp_bias = config.spec.attention_bias, config.spec.mlp_bias
        features = DecoderFeatures(qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)
        super().__init__(config, features)
