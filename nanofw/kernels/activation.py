"""Activations of the feed-forward part, alone and gated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch.nn import functional

from nanofw.kernels.dispatch import uses_triton

Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2d], gate first; gives [..., d]."""
    if uses_triton(x):
        from nanofw.kernels.triton import activation as triton_activation

        return triton_activation.silu_and_mul(x)
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def gelu_and_mul(x: torch.Tensor, *, is_tanh: bool) -> torch.Tensor:
    """gelu(gate) * up of [..., 2d], gate first; gives [..., d].

    Hendrycks and Gimpel, "Gaussian Error Linear Units". `is_tanh`: by its approximation.
    """
    if uses_triton(x):
        from nanofw.kernels.triton import activation as triton_activation

        return triton_activation.gelu_and_mul(x, is_tanh=is_tanh)
    gate, up = x.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh" if is_tanh else "none").mul_(up)


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    }
)
"""By the name that `config.json` has for it: [..., d] to the same."""
GATED_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": silu_and_mul,
        "gelu": partial(gelu_and_mul, is_tanh=False),
        "gelu_pytorch_tanh": partial(gelu_and_mul, is_tanh=True),
    }
)
"""The same, of the gate, times the other half: [..., 2d], gate first, to [..., d]."""
