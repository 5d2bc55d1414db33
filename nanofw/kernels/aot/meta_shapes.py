"""Shapes of common operations on tensors of the device `meta`, without PyTorch's Python.

PyTorch finds many of them by reference implementations in Python, whose first use imports its
compiler and a computer algebra system: two seconds in which no other thread runs. The rules here
cover what models of this package do; all other operations are left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LEFT_ALONE = object()
_IN_PLACE = (
    "fill_", "zero_", "copy_", "scatter_", "masked_fill_", "add_", "sub_", "mul_", "div_",
)  # fmt: skip


class MetaShapes(TorchFunctionMode):
    """Inside, in this thread, results on `meta` come by the rules of this module."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            found = rule(*args, **kwargs)
            if found is not _LEFT_ALONE:
                return found
        return func(*args, **kwargs)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
    if not x.is_meta:
        return _LEFT_ALONE
    return _empty((*x.shape[:-1], weight.shape[0]), x.dtype)


def _embedding(ids: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> object:
    if not weight.is_meta:
        return _LEFT_ALONE
    return _empty((*ids.shape, weight.shape[1]), weight.dtype)


def _new_empty(
    x: torch.Tensor, *size: object, dtype: torch.dtype | None = None, **others: object
) -> object:
    if not x.is_meta or others:
        return _LEFT_ALONE
    return _empty(_sizes(size), dtype or x.dtype)


def _like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **others: object) -> object:
    if not x.is_meta or others or not x.is_contiguous():
        return _LEFT_ALONE
    return _empty(x.shape, dtype or x.dtype)


def _filled(
    *size: object, dtype: torch.dtype | None = None, device: Any = None, **others: object
) -> object:
    if not _is_meta(device) or others:
        return _LEFT_ALONE
    return _empty(_sizes(size), dtype or torch.get_default_dtype())


def _arange(
    *bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **others: object
) -> object:
    if not _is_meta(device) or others or not all(isinstance(bound, int) for bound in bounds):
        return _LEFT_ALONE
    return _empty((len(range(*bounds)),), dtype or torch.int64)


def _in_place(x: torch.Tensor, *_: object, **__: object) -> object:
    return x if x.is_meta else _LEFT_ALONE


def _set_item(x: torch.Tensor, *_: object) -> object:
    return None if x.is_meta else _LEFT_ALONE


def _get_item(x: torch.Tensor, index: Any) -> object:
    """Tensors of whole numbers for the first dimensions, then slices."""
    index = index if isinstance(index, tuple) else (index,)
    tensors = [one for one in index if isinstance(one, torch.Tensor)]
    slices = index[len(tensors) :]
    if not x.is_meta or not tensors or any(one.dtype == torch.bool for one in tensors):
        return _LEFT_ALONE
    if not all(isinstance(one, slice) for one in slices):
        return _LEFT_ALONE
    rest = x[(slice(None),) * len(tensors) + slices].shape[len(tensors) :]
    return _empty((*_broadcast([one.shape for one in tensors]), *rest), x.dtype)


def _one_by_one(x: torch.Tensor) -> object:
    """A function of each element of floating type."""
    if not x.is_meta or not x.is_contiguous() or not x.is_floating_point():
        return _LEFT_ALONE
    return _empty(x.shape, x.dtype)


def _pairwise(x: Any, y: Any) -> object:
    """Sums, differences, products and the like of elements."""
    return _broadcast_like(torch.result_type(x, y), x, y)


def _compared(x: object, y: object) -> object:
    return _broadcast_like(torch.bool, x, y)


def _in_host_memory(x: torch.Tensor) -> object:
    """What is sent to `meta` needs no pinned memory."""
    return x


def _is_infinite(x: torch.Tensor) -> object:
    """What has no content has no infinite numbers."""
    return torch.zeros((), dtype=torch.bool) if x.is_meta else _LEFT_ALONE


def _where(condition: torch.Tensor, x: Any, y: Any) -> object:
    return _broadcast_like(torch.result_type(x, y), condition, x, y)


def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: object) -> object:
    return _broadcast_like(x.dtype, x, mask)


def _broadcast_like(dtype: torch.dtype, *operands: object) -> object:
    tensors = [one for one in operands if isinstance(one, torch.Tensor)]
    if not all(one.is_meta and one.is_contiguous() for one in tensors):
        return _LEFT_ALONE
    return _empty(_broadcast([one.shape for one in tensors]), dtype)


def _amax(x: torch.Tensor, dim: int) -> object:
    if not x.is_meta:
        return _LEFT_ALONE
    shape = list(x.shape)
    del shape[dim]
    return _empty(shape, x.dtype)


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> object:
    if not _are_alike(tensors):
        return _LEFT_ALONE
    shape = list(tensors[0].shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    return _empty(shape, tensors[0].dtype)


def _stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> object:
    if dim < 0 or not _are_alike(tensors):
        return _LEFT_ALONE
    shape = list(tensors[0].shape)
    shape.insert(dim, len(tensors))
    return _empty(shape, tensors[0].dtype)


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they are on `meta`, of one type and one number of dimensions."""
    first = tensors[0]
    return first.is_meta and all(
        one.dtype == first.dtype and one.dim() == first.dim() for one in tensors
    )


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Of shapes that fit each other."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True)]


def _sizes(size: tuple[Any, ...]) -> Sequence[int]:
    return size if not size or isinstance(size[0], int) else size[0]


def _rules() -> dict[object, Callable[..., object]]:
    tensor: Any = torch.Tensor
    rules: dict[object, Callable[..., object]] = {
        functional.linear: _linear,
        functional.embedding: _embedding,
        tensor.new_empty: _new_empty,
        torch.empty_like: _like,
        torch.zeros_like: _like,
        torch.zeros: _filled,
        torch.ones: _filled,
        torch.arange: _arange,
        torch.cat: _cat,
        torch.stack: _stack,
        torch.where: _where,
        tensor.amax: _amax,
        tensor.masked_fill: _masked_fill,
        tensor.pin_memory: _in_host_memory,
        tensor.isinf: _is_infinite,
        tensor.__getitem__: _get_item,
        tensor.__setitem__: _set_item,
    }
    for name in _IN_PLACE:
        rules[getattr(tensor, name)] = _in_place
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        rules[getattr(tensor, name)] = _compared
    for name in ("cos", "sin", "exp", "neg"):
        rules[getattr(tensor, name)] = _one_by_one
    for name in ("add", "sub", "mul", "__or__", "__and__"):
        rules[getattr(tensor, name)] = _pairwise
    return rules


_RULES = _rules()
