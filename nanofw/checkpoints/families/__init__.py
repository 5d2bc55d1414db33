"""The families of decoders whose `config.json` is read as transformers reads it: a module each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nanofw.checkpoints.families import llama, mistral, other, qwen2, qwen3
from nanofw.checkpoints.family import Family

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.architecture: family
        for family in (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)
    }
)
"""By architecture."""
OTHER = other.FAMILY
"""The reader of every other architecture, which a plugin may bring the model of."""
