"""Building blocks of decoders: split over ranks, loading their own weights. Public."""

from __future__ import annotations

from nanofw.models.layers.attention import Attention, PassInputs, pass_inputs
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
from nanofw.models.layers.rope import ROPE_TYPES, RotaryEmbedding

__all__ = [
    "ROPE_TYPES",
    "Attention",
    "ColumnParallelLinear",
    "GatedMLP",
    "Layer",
    "Linear",
    "MergedColumnParallelLinear",
    "ParallelHead",
    "PassInputs",
    "Projection",
    "QKVParallelLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "RowParallelLinear",
    "Targets",
    "VocabParallelEmbedding",
    "VocabularyRange",
    "empty_parameter",
    "fill",
    "joined",
    "load_tensors",
    "pass_inputs",
]
