"""Building blocks of decoders: split over ranks, loading their own weights.

Public: what `__all__` lists. The modules in this package are private.
"""

from __future__ import annotations

from nanofw.models.layers.attention import Attention, ForwardInputs, forward_inputs
from nanofw.models.layers.decoder import Decoder
from nanofw.models.layers.decoder_layers import DecoderLayer, make_norm
from nanofw.models.layers.embedding import ParallelHead, VocabParallelEmbedding, VocabularyRange
from nanofw.models.layers.features import DecoderFeatures, LayerNorms
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import (
    ColumnParallelLinear,
    Linear,
    MergedColumnParallelLinear,
    Projection,
    QKVParallelLinear,
    RowParallelLinear,
)
from nanofw.models.layers.loading import (
    Targets,
    empty_parameter,
    fill,
    fill_random,
    joined,
    load_tensors,
)
from nanofw.models.layers.mlp import GatedMLP, PlainMLP
from nanofw.models.layers.norm import LayerNorm, Norm, RMSNorm
from nanofw.models.layers.rope import NoRotation, RotaryEmbedding, layer_ropes
from nanofw.models.layers.rope_types import ROPE_TYPES, RopeSettings

__all__ = [
    "ROPE_TYPES",
    "Attention",
    "ColumnParallelLinear",
    "Decoder",
    "DecoderFeatures",
    "DecoderLayer",
    "GatedMLP",
    "Layer",
    "LayerNorm",
    "LayerNorms",
    "Linear",
    "MergedColumnParallelLinear",
    "ParallelHead",
    "ForwardInputs",
    "NoRotation",
    "Norm",
    "PlainMLP",
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
    "fill_random",
    "joined",
    "layer_ropes",
    "load_tensors",
    "make_norm",
    "forward_inputs",
]
