"""GLM-4 as it was first published: half of each head is rotated, neighbours together.

GLM team, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class GlmForCausalLM(Decoder):
    """Constructed as `GlmForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        features = DecoderFeatures(
            qkv_bias=config.spec.attention_bias,
            fused_gate=True,
            partial_rotation=True,
            interleaved_rotation=True,
        )
        super().__init__(config, features)
