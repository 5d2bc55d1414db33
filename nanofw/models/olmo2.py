"""OLMo 2: norms behind each part alone; queries and keys are normalised, all heads together.

Walsh et al., "2 OLMo 2 Furious".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures, LayerNorms


class Olmo2ForCausalLM(Decoder):
    """Constructed as `Olmo2ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        bias = config.spec.attention_bias
        features = DecoderFeatures(
            qk_norm_whole=True,
            qkv_bias=bias,
            out_bias=bias,
            norms=LayerNorms(
                before_attention=None,
                after_attention="post_attention_layernorm",
                before_mlp=None,
                after_mlp="post_feedforward_layernorm",
            ),
        )
        super().__init__(config, features)
