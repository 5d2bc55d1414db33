from __future__ import annotations

import pytest
import torch

from nanofw.kernels import random


def noise(seed=1, index=0, position=5, stream=0, tokens=20000):
    keys = random.draw_keys(
        torch.tensor([random.row_key(seed, index)]), torch.tensor([position]), stream
    )
    return random.gumbel(keys[:, None], torch.arange(tokens)[None])[0]


def test_noise_has_the_gumbel_distribution() -> None:
    samples = noise(tokens=1_000_000).double()
    assert samples.mean().item() == pytest.approx(0.5772, abs=5e-3)
    assert samples.var().item() == pytest.approx(1.6449, abs=2e-2)
    for x in (-1.0, 0.0, 1.0, 3.0, 8.0):
        below = (samples < x).double().mean().item()
        assert below == pytest.approx(torch.tensor(-x).exp().neg().exp().item(), abs=2e-3)


def test_every_part_of_the_counter_counts() -> None:
    base = noise()
    others = [noise(seed=2), noise(index=1), noise(position=6), noise(stream=1)]
    for i, other in enumerate(others):
        correlation = torch.corrcoef(torch.stack([base, other]))[0, 1].abs()
        assert correlation < 0.03, i
    assert torch.equal(base, noise())


def test_noise_of_a_token_depends_on_neither_batch_nor_split() -> None:
    keys = random.draw_keys(
        torch.tensor([random.row_key(s, 0) for s in range(3)]), torch.tensor([4, 9, 2])
    )
    whole = random.gumbel(keys[:, None], torch.arange(100)[None])
    part = random.gumbel(keys[1:2, None], torch.arange(60, 100)[None])
    assert torch.equal(whole[1:2, 60:], part)


def test_bits_are_balanced_and_distinct() -> None:
    keys = random.draw_keys(torch.tensor([random.row_key(0, 0)]), torch.tensor([0]))
    bits = random.random_bits(keys, torch.arange(65536))
    assert len(bits.unique()) > 65530
    for k in range(32):
        assert ((bits >> k) & 1).double().mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, -1])
def test_any_64_bit_seed_is_a_key(seed) -> None:
    key = random.row_key(seed, 3)
    assert -(2**63) <= key < 2**63
    torch.tensor([key])


def test_noise_is_finite_at_both_ends() -> None:
    ends = torch.tensor([0, 1, -1, -(2**31), 2**31 - 1], dtype=torch.int32)
    assert torch.isfinite(-torch.log(random.exponential(ends))).all()
