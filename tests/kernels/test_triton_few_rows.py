"""The product of a few rows against torch's."""

from __future__ import annotations

import pytest
import torch

from nanofw.kernels import linear as dispatched
from nanofw.kernels.triton.few_rows import (
    CONFIGS,
    few_rows_config,
    few_rows_linear,
    has_few_rows,
)
from tests.kernels.paged import device, relative_error, tolerance
from tests.kernels.test_triton_linear import product


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [config for _, config in CONFIGS], ids=str)
@pytest.mark.parametrize(("num_rows", "bias"), [(2, False), (7, True), (16, False)])
def test_few_rows(dtype, config, num_rows: int, bias: bool) -> None:
    x = torch.randn(num_rows, 1024, device=device()).to(dtype)
    weight = torch.randn(37, 1024, device=device()).to(dtype)
    offset = torch.randn(37, device=device()).to(dtype) if bias else None
    out = few_rows_linear(x, weight, offset, config=config)
    assert (out.shape, out.dtype) == ((num_rows, 37), dtype)
    assert relative_error(out, product(x, weight, offset)) < tolerance(dtype)


def test_what_lies_behind_rows_and_weight_is_not_read() -> None:
    whole = torch.full((24, 1200), float("nan"), dtype=torch.bfloat16, device=device())
    x, weight = whole[:3, :512], whole[16:21, :512]
    for part in (x, weight):
        part.copy_(torch.randn(part.shape))
    assert has_few_rows(x, weight)
    error = relative_error(few_rows_linear(x, weight), product(x, weight))
    assert error < tolerance(torch.bfloat16)


def test_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the product is, the kernel's or the library's: the same numbers."""
    monkeypatch.setattr(dispatched, "uses_triton", lambda tensor: True)
    weight = torch.randn(40, 512, device=device()).to(torch.bfloat16)
    shapes = [(2, 512), (16, 512), (17, 512), (2, 3, 512), (0, 512)]
    for shape in shapes:
        x = torch.randn(*shape, device=device()).to(torch.bfloat16)
        assert has_few_rows(x, weight) == (shape in shapes[:2])
        out = dispatched.linear(x, weight)
        assert out.shape == (*shape[:-1], 40)
        if x.numel():
            assert relative_error(out, product(x, weight)) < tolerance(torch.bfloat16)


def test_other_products_are_left_to_the_library() -> None:
    weight = torch.randn(40, 512, device=device()).to(torch.bfloat16)
    x = torch.randn(4, 1024, device=device()).to(torch.bfloat16)
    assert has_few_rows(x[:, :512], weight)
    assert not has_few_rows(x[:, ::2], weight)
    assert not has_few_rows(x[:, 4:516], weight)  # wide loads would not be aligned
    assert not has_few_rows(x[:, :512].float(), weight.float())
    assert not has_few_rows(x[:, :500], weight[:, :500])  # no full tile
    assert not has_few_rows(x, weight)


def test_wide_weights_are_the_librarys_except_where_it_is_slower() -> None:
    assert [rows for rows in range(20) if few_rows_config(24576, 4096, rows)] == [5, 6, 7, 8]
    assert [rows for rows in range(20) if few_rows_config(1024, 2048, rows)] == list(range(1, 17))
    assert few_rows_config(151936, 1024, 8) is None
