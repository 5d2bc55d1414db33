"""GLM-4 of 2025: norms after attention and feed-forward part, too.

GLM team, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures, LayerNorms


class Glm4ForCausalLM(Decoder):
    """Constructed as `Glm4ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        features = DecoderFeatures(
            qkv_bias=config.spec.attention_bias,
            norms=LayerNorms(
                after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
            ),
            fused_gate=True,
            partial_rotation=True,
            interleaved_rotation=True,
        )
        super().__init__(config, features)
