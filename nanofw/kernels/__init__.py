"""Operations that run as Triton kernels where they can, and as torch functions elsewhere.

Public: what `__all__` lists. The modules in this package are private.
"""

from __future__ import annotations

from nanofw.kernels.activation import silu_and_mul
from nanofw.kernels.dispatch import launch, uses_triton
from nanofw.kernels.norm import add_rms_norm, rms_norm
from nanofw.kernels.random import (
    FIRST_PLUGIN_STREAM,
    STREAMS,
    base_key,
    exponential,
    position_keys,
    random_bits,
    uniform,
)
from nanofw.kernels.rope import Rotation, rotate, rotation
from nanofw.kernels.transfer import to_device

__all__ = [
    # layers
    "Rotation",
    "add_rms_norm",
    "rms_norm",
    "rotate",
    "rotation",
    "silu_and_mul",
    # random numbers of a request
    "FIRST_PLUGIN_STREAM",
    "STREAMS",
    "base_key",
    "exponential",
    "position_keys",
    "random_bits",
    "uniform",
    # devices
    "launch",
    "to_device",
    "uses_triton",
]
