"""Building blocks of decoders: split over ranks, loading their own weights.

Public: what `__all__` lists. The modules in this package are private.
"""

from __future__ import annotations

from nanofw.models.layers.attention import Attention, ForwardInputs, forward_inputs
from nanofw.models.layers.decoder import DecoderFeatures, DecoderLayer, PreNormDecoder
from nanofw.models.layers.embedding import ParallelHead, VocabParallelEmbedding, VocabularyRange
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import (
    ColumnParallelLinear,
    Linear,
    MergedColumnParallelLinear,
    Projection,
    QKVParallelLinear,
    RowParallelLinear,
)
from nanofw.models.layers.loading import Targets, empty_parameter, fill, joined, load_tensors
from nanofw.models.layers.mlp import GatedMLP
from nanofw.models.layers.norm import RMSNorm
from nanofw.models.layers.rope import RotaryEmbedding
from nanofw.models.layers.rope_types import ROPE_TYPES, RopeSettings

__all__ = [
    "ROPE_TYPES",
    "Attention",
    "ColumnParallelLinear",
    "DecoderFeatures",
    "DecoderLayer",
    "GatedMLP",
    "Layer",
    "Linear",
    "MergedColumnParallelLinear",
    "ParallelHead",
    "ForwardInputs",
    "PreNormDecoder",
    "Projection",
    "QKVParallelLinear",
    "RMSNorm",
    "RopeSettings",
    "RotaryEmbedding",
    "RowParallelLinear",
    "Targets",
    "VocabParallelEmbedding",
    "VocabularyRange",
    "empty_parameter",
    "fill",
    "joined",
    "load_tensors",
    "forward_inputs",
]
