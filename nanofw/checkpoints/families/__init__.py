"""The families of decoders whose `config.json` is read as transformers reads it: a module each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nanofw.checkpoints.families import (
    cohere2,
    gemma2,
    gemma3,
    glm,
    glm4,
    granite,
    llama,
    mistral,
    olmo2,
    olmo3,
    other,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    starcoder2,
)
from nanofw.checkpoints.family import Family

_MODULES = (
    cohere2, gemma2, gemma3, glm, glm4, granite, llama, mistral, olmo2, olmo3, phi3, qwen2, qwen3,
    smollm3, starcoder2,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {module.FAMILY.architecture: module.FAMILY for module in _MODULES}
)
"""By architecture."""
OTHER = other.FAMILY
"""The reader of every other architecture, which a plugin may bring the model of."""
