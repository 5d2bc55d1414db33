"""Llama 1 to 3 and models of its shape (SmolLM2, TinyLlama).

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models"; Grattafiori et al., "The
Llama 3 Herd of Models".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelContext
from nanofw.contracts.model_spec import ModelSpec
from nanofw.models.layers import DecoderFeatures, PreNormDecoder


class LlamaForCausalLM(PreNormDecoder):
    """Constructed as `LlamaForCausalLM(spec, context)`, empty; `load` fills it."""

    def __init__(self, spec: ModelSpec, context: ModelContext) -> None:
        bias = spec.attention_bias
        features = DecoderFeatures(qkv_bias=bias, out_bias=bias, mlp_bias=spec.mlp_bias)
        super().__init__(spec, context, features)
