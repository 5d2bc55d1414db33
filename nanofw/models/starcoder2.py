"""StarCoder 2: LayerNorm, a feed-forward part without a gate, biases everywhere.

Lozhkov et al., "StarCoder 2 and The Stack v2: The Next Generation".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class Starcoder2ForCausalLM(Decoder):
    """Constructed as `Starcoder2ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        has_biases = config.spec.family_values["has_biases"]
        features = DecoderFeatures(
            qkv_bias=has_biases,
            out_bias=has_biases,
            mlp_bias=has_biases,
            norm_kind="layer_bias",
            activations=("gelu_pytorch_tanh",),
            plain_mlp=("c_fc", "c_proj"),
        )
        super().__init__(config, features)
