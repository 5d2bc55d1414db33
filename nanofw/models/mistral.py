"""Mistral, dense: no biases, whatever `config.json` says; its layers may have windows.

Jiang et al., "Mistral 7B".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelConfig
from nanofw.models.layers import Decoder, DecoderFeatures


class MistralForCausalLM(Decoder):
    """Constructed as `MistralForCausalLM(options, config)`, empty; `load` fills it."""

    def __init__(self, options: None, config: ModelConfig) -> None:
        super().__init__(config, DecoderFeatures())
