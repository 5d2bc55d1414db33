"""Llama 1 to 3 and models of its shape (SmolLM2, TinyLlama).

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models"; Grattafiori et al., "The
Llama 3 Herd of Models".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class LlamaForCausalLM(Decoder):
    """Constructed as `LlamaForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        bias, mlp_bias = config.spec.attention_bias, config.spec.mlp_bias
        features = DecoderFeatures(qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)
        super().__init__(config, features)
