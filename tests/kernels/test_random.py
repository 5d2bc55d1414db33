from __future__ import annotations

import math

import pytest
import torch

from nanofw.kernels import random


def key(seed=1, index=0, stream=0, position=5) -> torch.Tensor:
    base = torch.tensor([random.base_key(seed, index, stream)], dtype=torch.int32)
    return random.position_keys(base, torch.tensor([position], dtype=torch.int32))


def numbers(tokens=20000, **place) -> torch.Tensor:
    return random.exponential(random.random_bits(key(**place), ids(tokens)))[0]


def ids(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32)


def test_numbers_have_the_exponential_distribution() -> None:
    samples = numbers(1_000_000).double()
    assert samples.mean().item() == pytest.approx(1.0, abs=4e-3)
    assert samples.var().item() == pytest.approx(1.0, abs=1e-2)
    for x in (1e-4, 1e-2, 0.5, 2.0, 6.0):
        below = (samples < x).double().mean().item()
        assert below == pytest.approx(-math.expm1(-x), abs=2e-3, rel=0.2)


def test_every_part_of_the_place_counts() -> None:
    base = numbers()
    others = [numbers(**{part: 3}) for part in ("seed", "index", "stream", "position")]
    for other in others:
        assert torch.corrcoef(torch.stack([base, other]))[0, 1].abs() < 0.03
    assert torch.equal(base, numbers())


def test_a_number_depends_on_neither_batch_nor_split() -> None:
    keys = torch.cat([key(seed=s, position=s) for s in (4, 9, 2)])
    whole = random.random_bits(keys, ids(100))
    part = random.random_bits(keys[1:2], ids(100)[60:])
    assert torch.equal(whole[1:2, 60:], part)


def test_bits_are_balanced_and_distinct() -> None:
    bits = random.random_bits(key(), ids(65536))
    assert len(bits.unique()) > 65530
    for k in range(32):
        assert ((bits >> k) & 1).double().mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, -1, -(2**63)])
def test_any_64_bit_seed_makes_a_key(seed) -> None:
    assert all(-(2**31) <= word < 2**31 for word in random.base_key(seed, 3))


def test_numbers_are_positive_and_finite_at_both_ends() -> None:
    ends = torch.tensor([0, 1, -1, -(2**31), 2**31 - 1], dtype=torch.int32)
    values = random.exponential(ends)
    assert torch.isfinite(values).all()
    assert (values > 0).all()
