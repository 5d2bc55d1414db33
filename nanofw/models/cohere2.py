"""Command R7B and Command A: attention and feed-forward part side by side, behind one norm.

Cohere team, "Command A: An Enterprise-Ready Large Language Model".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class Cohere2ForCausalLM(Decoder):
    """Constructed as `Cohere2ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        spec = config.spec
        bias = spec.attention_bias
        features = DecoderFeatures(
            qkv_bias=bias,
            out_bias=bias,
            norm_kind="layer",
            is_parallel=True,
            interleaved_rotation=True,
            **spec.family_values,
        )
        super().__init__(config, features)
