"""Phi-3 and Phi-4: fused projections, heads that are rotated in part, LongRoPE.

Abdin et al., "Phi-3 Technical Report"; "Phi-4 Technical Report".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class Phi3ForCausalLM(Decoder):
    """Constructed as `Phi3ForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        features = DecoderFeatures(fused_projections=True, fused_gate=True, partial_rotation=True)
        super().__init__(config, features)
