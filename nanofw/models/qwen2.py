"""Qwen2 and Qwen2.5, dense: queries, keys and values always have biases.

Yang et al., "Qwen2 Technical Report"; "Qwen2.5 Technical Report".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelContext
from nanofw.contracts.model_spec import ModelSpec
from nanofw.models.layers import DecoderFeatures, PreNormDecoder


class Qwen2ForCausalLM(PreNormDecoder):
    """Constructed as `Qwen2ForCausalLM(spec, context)`, empty; `load` fills it."""

    def __init__(self, spec: ModelSpec, context: ModelContext) -> None:
        super().__init__(spec, context, DecoderFeatures(qkv_bias=True))
