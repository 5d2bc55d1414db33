from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from nanofw.kernels import linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lines", [0, 1, 3, 70])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_product_is_the_plain_one(dtype: torch.dtype, lines: int, bias: bool) -> None:
    weight = torch.randn(33, 20).to(dtype)
    if not linear.can_pack(weight):
        pytest.skip(f"oneDNN packs no {dtype} here")
    offset = torch.randn(33).to(dtype) if bias else None
    x = torch.randn(lines, 40).to(dtype)[:, ::2]
    got = linear.packed_linear(x, linear.pack(weight), offset)
    expected = functional.linear(x, weight, offset)
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_float16_is_not_packed() -> None:
    assert not linear.can_pack(torch.ones(4, 4, dtype=torch.float16))


def test_operators_that_are_gone_cost_speed_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(weight: torch.Tensor) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear, "pack", gone)
    linear._packs.cache_clear()
    try:
        with pytest.warns(UserWarning, match="no such operator"):
            assert not linear.can_pack(torch.ones(4, 4))
    finally:
        linear._packs.cache_clear()


def test_few_numbers_of_rows_stand_for_all() -> None:
    padded = [linear.padded_rows(n) for n in range(1, 1025)]
    assert all(p >= n for n, p in enumerate(padded, start=1))
    assert all(p <= 1.25 * n for n, p in enumerate(padded, start=1) if n > 32)
    assert padded == sorted(padded)
    assert len(set(padded)) == 38
    assert linear.padded_rows(1024) == 1024
