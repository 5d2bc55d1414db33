"""Gemma 3, text: as Gemma 2 without bounds; queries and keys are normalised by head.

Kamath et al., "Gemma 3 Technical Report".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures, LayerNorms


class Gemma3ForCausalLM(Decoder):
    """Constructed as `Gemma3ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        spec = config.spec
        bias = spec.attention_bias
        features = DecoderFeatures(
            qk_norm=True,
            norm_kind="rms_plus_one",
            norms=LayerNorms(
                after_attention="post_attention_layernorm",
                before_mlp="pre_feedforward_layernorm",
                after_mlp="post_feedforward_layernorm",
            ),
            activations=("gelu_pytorch_tanh",),
            qkv_bias=bias,
            out_bias=bias,
            embedding_scale=spec.hidden_size**0.5,
            **spec.family_values,
        )
        super().__init__(config, features)
