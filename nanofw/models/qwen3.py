"""Qwen3, dense: queries and keys are normalised by head.

Yang et al., "Qwen3 Technical Report".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class Qwen3ForCausalLM(Decoder):
    """Constructed as `Qwen3ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        bias = config.spec.attention_bias
        features = DecoderFeatures(qk_norm=True, qkv_bias=bias, out_bias=bias)
        super().__init__(config, features)
