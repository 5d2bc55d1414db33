"""The product of one row against torch's."""

from __future__ import annotations

import pytest
import torch

from nanofw.kernels import linear as dispatched
from nanofw.kernels.triton.linear import (
    CONFIGS,
    WIDE,
    config_for,
    has_one_row,
    one_row_linear,
)
from tests.kernels.paged import device, relative_error, tolerance

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def product(x, weight, bias=None):
    return torch.nn.functional.linear(
        x.float(), weight.float(), None if bias is None else bias.float()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"),
    [(7, 20), (1, 1), (5, 512), (33, 600), (6, 1024), (9, 3072), (3, 4096), (10, 5120), (4, 8200)],
)
def test_one_row(dtype, bias, num_outputs, num_inputs) -> None:
    x = torch.randn(1, num_inputs, device=device()).to(dtype)
    weight = torch.randn(num_outputs, num_inputs, device=device()).to(dtype)
    offset = torch.randn(num_outputs, device=device()).to(dtype) if bias else None
    assert has_one_row(x, weight)
    out = one_row_linear(x, weight, offset)
    assert out.shape == (1, num_outputs)
    assert out.dtype == dtype
    assert relative_error(out, product(x, weight, offset)) < tolerance(dtype)


@pytest.mark.parametrize("config", [*CONFIGS, WIDE], ids=str)
def test_every_configuration(config) -> None:
    x, weight = torch.randn(1, 5000, device=device()), torch.randn(5, 5000, device=device())
    out = one_row_linear(x, weight, config=config)
    assert relative_error(out, product(x, weight)) < tolerance(torch.float32)


def test_tiles_divide_the_inputs_where_they_can() -> None:
    widths = {4096: 2048, 12288: 2048, 2048: 2048, 3072: 1024, 25600: 1024, 1024: 1024}
    for num_inputs, width in widths.items():
        assert config_for(4096, num_inputs).inputs == width
    assert config_for(4096, 576).inputs == 1024
    assert config_for(4096, 20).inputs == 512
    assert config_for(24576, 4096) == WIDE
    assert config_for(151936, 1024).inputs == 512


def test_what_lies_behind_a_weight_is_not_read() -> None:
    """NaN after the last line, and after each line, of a weight that is part of a larger one."""
    whole = torch.full((8, 700), float("nan"), device=device())
    weight = whole[:5, :600]
    weight.copy_(torch.randn(5, 600))
    x = torch.full((700,), float("nan"), device=device())[:600].copy_(torch.randn(600))
    out = one_row_linear(x, weight)
    assert out.shape == (5,)
    assert relative_error(out, product(x, weight)) < tolerance(torch.float32)


def test_dispatch(monkeypatch) -> None:
    monkeypatch.setattr(dispatched, "uses_triton", lambda tensor: True)
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(6, 256, device=device()).to(dtype)
        for shape in [(1, 256), (256,), (1, 1, 256), (2, 256), (1, 2, 256), (32, 256), (0, 256)]:
            x = torch.randn(*shape, device=device()).to(dtype)
            out = dispatched.linear(x, weight)
            assert out.shape == (*shape[:-1], 6)
            if x.numel():
                assert relative_error(out, product(x, weight)) < tolerance(dtype)


def test_other_products_are_left_to_torch(monkeypatch) -> None:
    monkeypatch.setattr(dispatched, "uses_triton", lambda tensor: True)
    weight = torch.randn(6, 256, device=device()).to(torch.bfloat16)
    spread = torch.randn(2, 512, device=device()).to(torch.bfloat16)[:, ::2]
    shifted = torch.randn(2 * 256 + 1, device=device()).to(torch.bfloat16)[1:].view(2, 256)
    for x in (spread, spread[:1], shifted, shifted[0]):  # wide loads would not be aligned
        assert not has_one_row(x, weight)
        out = dispatched.linear(x, weight)
        assert relative_error(out, product(x, weight)) < tolerance(torch.bfloat16)
    double = torch.randn(1, 256, device=device()).double()
    assert not has_one_row(double, weight.double())
    assert not has_one_row(torch.randn(2, 256).to(torch.bfloat16), weight)
