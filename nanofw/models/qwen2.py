"""Qwen2 and Qwen2.5, dense: queries, keys and values always have biases.

Yang et al., "Qwen2 Technical Report"; "Qwen2.5 Technical Report".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class Qwen2ForCausalLM(Decoder):
    """Constructed as `Qwen2ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        super().__init__(config, DecoderFeatures(qkv_bias=True))
