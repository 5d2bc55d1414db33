"""Modules of transformers whose work takes fewer steps here: linear layers and RMS norms.

A linear layer on a CPU gets its weight in the layout that is multiplied fastest. A norm that
transformers spells in six operations becomes one. Which norms are of that kind is found by trying
them: a module is replaced where both give the same numbers.
"""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn import functional

from nanofw.kernels.products import ConstantWeight, WeightShape, choose, is_chosen
from nanofw.models.layers.layer import Layer

_BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 0.03}


class ConstantLinear(Layer):
    """`nn.Linear` with its weight in the layout that the processor multiplies fastest with."""

    def __init__(self, linear: nn.Linear, constant: ConstantWeight) -> None:
        super().__init__()
        self._constant = constant
        self.weight: nn.Parameter = _placeholder(linear.weight, constant)
        self.bias: nn.Parameter | None = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return self._constant.multiply(x, self.bias)


class OneCallNorm(Layer):
    """An RMS norm in one call.

    Args:
        weight: what the module keeps.
        factors: what its output is multiplied by; float32 where the family does so in float32.
    """

    def __init__(self, weight: nn.Parameter, factors: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight: nn.Parameter = weight
        self._factors, self._eps = factors, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        factors = self._factors
        if factors.dtype != x.dtype:
            wide = functional.rms_norm(x.to(factors.dtype), factors.shape, factors, self._eps)
            return wide.to(x.dtype)
        return functional.rms_norm(x, factors.shape, factors, self._eps)


@torch.no_grad()
def replace_modules(model: nn.Module) -> None:
    """Replace the parts of a loaded model that have a faster form."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if (weight := own.get("weight")) is not None:
            owners.setdefault(id(weight), []).append(module)
    shapes = {
        module: _shape(module.weight, is_shared=len(owners[id(module.weight)]) > 1)
        for module in model.modules()
        if type(module) is nn.Linear and is_chosen(module.weight)
    }
    choices = choose(shapes.values())
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear) and (shape := shapes.get(part)) is not None:
                constant = ConstantWeight(part.weight, choices[shape])
                for other in owners[id(part.weight)]:
                    if other is not part:  # an embedding that the head is tied to
                        other.weight = _placeholder(part.weight, constant)
                setattr(parent, name, ConstantLinear(part, constant))
            elif (norm := _one_call_norm(part)) is not None:
                setattr(parent, name, norm)


def _shape(weight: torch.Tensor, *, is_shared: bool) -> WeightShape:
    outputs, inputs = weight.shape
    return WeightShape(inputs, outputs, weight.dtype, is_shared)


def _placeholder(weight: torch.Tensor, constant: ConstantWeight) -> nn.Parameter:
    """What stands for a weight that is kept in another layout.

    Families ask a weight for its type and device. One that computes with a packed one gets NaN.
    """
    if constant.layout != "packed":
        return nn.Parameter(constant.readable(), requires_grad=False)
    nothing = torch.full((), torch.nan, dtype=weight.dtype, device=weight.device)
    return nn.Parameter(nothing.expand(weight.shape), requires_grad=False)


def _one_call_norm(module: nn.Module) -> OneCallNorm | None:
    """What computes the same as this module; None: it is not a plain RMS norm."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(weight, nn.Parameter):
        return None
    if type(eps) is not float or weight.dim() != 1 or len([*module.parameters()]) != 1:
        return None
    if len(inspect.signature(module.forward).parameters) != 1:
        return None
    for factors in (weight, 1 + weight.float()):
        norm = OneCallNorm(weight, factors, eps)
        if _are_equal(module, norm, weight, eps):
            return norm
    return None


def _are_equal(module: nn.Module, norm: OneCallNorm, weight: torch.Tensor, eps: float) -> bool:
    """Tried on vectors of ordinary size, and of such that the epsilon counts."""
    steps = torch.arange(4 * weight.numel(), device=weight.device).view(2, 2, -1)
    vectors = (steps * 0.61803).frac().sub(0.45)
    vectors[1] *= 3 * eps**0.5
    vectors = vectors.to(weight.dtype)
    wanted, found = module(vectors).float(), norm(vectors).float()
    bound = _BOUNDS[weight.dtype] * (wanted.abs() + wanted.abs().mean())
    return bool(((found - wanted).abs() <= bound).all())
