"""Mistral, dense: no biases, whatever `config.json` says; its layers may have windows.

Jiang et al., "Mistral 7B".
"""

from __future__ import annotations

from nanofw.contracts.model import ModelContext
from nanofw.contracts.model_spec import ModelSpec
from nanofw.models.layers import DecoderFeatures, PreNormDecoder


class MistralForCausalLM(PreNormDecoder):
    """Constructed as `MistralForCausalLM(spec, context)`, empty; `load` fills it."""

    def __init__(self, spec: ModelSpec, context: ModelContext) -> None:
        super().__init__(spec, context, DecoderFeatures())
