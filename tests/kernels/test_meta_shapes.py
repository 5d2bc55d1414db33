"""Operations on tensors without content give the shapes, types and strides of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from nanofw.kernels.aot.meta_shapes import _RULES, MetaShapes
from nanofw.kernels.transfer import to_device

Operation = Callable[[torch.device], torch.Tensor]


def floats(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def numbers(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def filled(x: torch.Tensor) -> torch.Tensor:
    x[numbers(x.device, 5)] = 1
    return x


OPERATIONS: dict[str, Operation] = {
    "linear": lambda d: functional.linear(floats(d, 3, 8), floats(d, 5, 8), floats(d, 5)),
    "linear, three dimensions": lambda d: functional.linear(floats(d, 2, 3, 8), floats(d, 5, 8)),
    "embedding": lambda d: functional.embedding(numbers(d, 3), floats(d, 7, 8)),
    "new_empty": lambda d: floats(d, 3).new_empty(4, 5),
    "new_empty of a shape": lambda d: floats(d, 3).new_empty((4,), dtype=torch.int32),
    "new_empty, a scalar": lambda d: floats(d, 3).new_empty(()),
    "empty_like": lambda d: torch.empty_like(floats(d, 3, 4)),
    "empty_like, transposed": lambda d: torch.empty_like(floats(d, 3, 4).t()),
    "zeros_like": lambda d: torch.zeros_like(floats(d, 3, 4), dtype=torch.int32),
    "zeros": lambda d: torch.zeros(3, 4, device=d),
    "zeros of a shape": lambda d: torch.zeros((3, 4), dtype=torch.int8, device=d),
    "ones": lambda d: torch.ones(2, device=d),
    "arange": lambda d: torch.arange(7, device=d),
    "arange with a step": lambda d: torch.arange(3, 12, 4, dtype=torch.float32, device=d),
    "arange of floats": lambda d: torch.arange(0.5, 3, device=d),
    "cat": lambda d: torch.cat((floats(d, 2, 3), floats(d, 2, 5)), dim=-1),
    "cat of types": lambda d: torch.cat((floats(d, 2), numbers(d, 2))),
    "stack": lambda d: torch.stack((floats(d, 2, 3), floats(d, 2, 3)), dim=1),
    "where": lambda d: torch.where(numbers(d, 3) > 0, floats(d, 2, 3), 0.0),
    "amax": lambda d: floats(d, 2, 3, 4).amax(dim=-2),
    "masked_fill": lambda d: floats(d, 3, 4).masked_fill(numbers(d, 3, 1) > 0, 0),
    "masked_fill_": lambda d: floats(d, 3, 4).masked_fill_(numbers(d, 3, 1) > 0, 0),
    "rows": lambda d: floats(d, 7, 8)[numbers(d, 3)],
    "rows and slices": lambda d: floats(d, 7, 8, 9)[numbers(d, 3), :5],
    "places": lambda d: floats(d, 7, 8, 9)[numbers(d, 3), numbers(d, 3)],
    "slices": lambda d: floats(d, 7, 8)[1:, 2],
    "set": lambda d: filled(floats(d, 7, 8)),
    "sum": lambda d: floats(d, 3, 1) + floats(d, 4),
    "sum of types": lambda d: numbers(d, 3) + floats(d, 3),
    "sum with a number": lambda d: numbers(d, 3) - 1.5,
    "product of a transposed": lambda d: floats(d, 3, 4).t() * 2,
    "comparison": lambda d: (numbers(d, 3) < 0) | (numbers(d, 3) >= 2),
    "and of integers": lambda d: numbers(d, 3) & 3,
    "cosine": lambda d: floats(d, 3, 4).cos(),
    "cosine of integers": lambda d: numbers(d, 3).cos(),
    "in place": lambda d: floats(d, 3, 4).fill_(1).add_(1).sub_(1).mul_(2).div_(3).zero_(),
    "copied": lambda d: floats(d, 3, 4).copy_(floats(d, 3, 4)),
    "scattered": lambda d: numbers(d, 9).scatter_(0, numbers(d, 3), numbers(d, 3)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_is_what_real_tensors_give(name: str) -> None:
    expected = OPERATIONS[name](torch.device("cpu"))
    with MetaShapes():
        found = OPERATIONS[name](torch.device("meta"))
    assert found.is_meta
    assert (found.shape, found.dtype, found.stride()) == (
        expected.shape, expected.dtype, expected.stride(),
    )  # fmt: skip


def test_what_has_no_content_has_no_infinite_numbers() -> None:
    with MetaShapes():
        assert not bool(floats(torch.device("meta"), 3).isinf().any())
        assert torch.tensor([torch.inf, 0]).isinf().tolist() == [True, False]


def test_what_is_sent_to_meta_needs_no_pinned_memory() -> None:
    with MetaShapes():
        sent = to_device(np.arange(3), torch.device("meta"))
    assert (sent.is_meta, sent.shape, sent.dtype) == (True, (3,), torch.int64)


def test_real_tensors_are_left_alone() -> None:
    with MetaShapes():
        for operation in OPERATIONS.values():
            assert operation(torch.device("cpu")).device.type == "cpu"
        assert torch.arange(3).tolist() == [0, 1, 2]
        assert torch.cat((torch.ones(1), torch.zeros(1))).tolist() == [1, 0]


def test_each_rule_is_held_to_it() -> None:
    used: set[Any] = set()

    class Noting(MetaShapes):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            used.add(func)
            return super().__torch_function__(func, types, args, kwargs)

    with Noting():
        for operation in OPERATIONS.values():
            operation(torch.device("meta"))
    unused = [getattr(func, "__name__", "") for func in _RULES if func not in used]
    assert set(unused) <= {"le", "gt", "eq", "ne", "sin", "exp", "neg", "isinf", "pin_memory"}
