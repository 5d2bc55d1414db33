"""Counter-based random numbers: exact values, uniformity, independence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from nanofw.kernels.random import (
    GOLDEN,
    base_key,
    exponential,
    position_keys,
    random_bits,
)

WORD = 0xFFFFFFFF
FROZEN = [1708541834, 1149836443, 1799161776]


def keys_of(
    seeds: list[int], positions: list[int], *, sample_index: int = 0, stream: int = 0
) -> torch.Tensor:
    """Keys of every seed at every position, seeds outermost."""
    base = torch.tensor(
        [base_key(seed, sample_index, stream) for seed in seeds for _ in positions],
        dtype=torch.int32,
    )
    return position_keys(base, torch.tensor(positions * len(seeds), dtype=torch.int32))


def bits_of(keys: torch.Tensor, count: int) -> np.ndarray:
    """uint32[rows, count], for the first token ids."""
    return random_bits(keys, torch.arange(count, dtype=torch.int32)).numpy().view(np.uint32)


def in_python(seed: int, sample_index: int, stream: int, position: int, token_id: int) -> int:
    """The same number by unbounded integers, written from the description."""

    def finalise(x: int) -> int:
        x = ((x ^ x >> 16) * 0x21F0AAAD) & WORD
        x = ((x ^ x >> 15) * 0xD35A2D97) & WORD
        return x ^ x >> 15

    first, second = (word & WORD for word in base_key(seed, sample_index, stream))
    golden = GOLDEN & WORD
    k0 = finalise((first + position * golden) & WORD)
    k1 = finalise(k0 ^ second)
    x = (token_id * golden & WORD) ^ k0
    x = (x ^ x >> 16) * 0x21F0AAAD + k1 & WORD
    x = (x ^ x >> 15) * 0xD35A2D97 & WORD
    return x ^ x >> 15


def test_torch_computes_what_the_description_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        seed = int(rng.integers(0, 1 << 63)) * 2 + 1
        index, stream = int(rng.integers(0, 9)), int(rng.integers(0, 4))
        position, token_id = int(rng.integers(0, 1 << 17)), int(rng.integers(0, 1 << 18))
        keys = keys_of([seed], [position], sample_index=index, stream=stream)
        got = int(random_bits(keys, torch.tensor([token_id], dtype=torch.int32))) & WORD
        assert got == in_python(seed, index, stream, position, token_id)


def test_values_never_change() -> None:
    """A seed gives the same tokens in every version; a change here is a breaking one."""
    assert [in_python(42, 0, 0, 7, token_id) for token_id in (0, 1, 151935)] == FROZEN


def uniform_p_value(bits: np.ndarray, shift: int) -> float:
    """Chi-squared of 256 bins made of eight bits from `shift` on."""
    counts = np.bincount((bits.ravel() >> shift) & 255, minlength=256)
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
@pytest.mark.parametrize("axis", ["token", "position", "seed", "stream", "sample"])
def test_uniform_along_every_argument(axis: str, shift: int) -> None:
    count = 1 << 16
    if axis == "token":
        bits = bits_of(keys_of([1], [5]), count)
    elif axis == "position":
        bits = bits_of(keys_of([1], list(range(count))), 1)
    elif axis == "seed":
        bits = bits_of(keys_of(list(range(4096)), [5]), 16)
    elif axis == "stream":
        bits = np.concatenate([bits_of(keys_of([1], [5], stream=s), 4096) for s in range(16)])
    else:
        bits = np.concatenate([bits_of(keys_of([1], [5], sample_index=i), 512) for i in range(128)])
    assert 1e-4 < uniform_p_value(bits, shift) < 1 - 1e-4


@pytest.mark.parametrize("distance", [1, 2, 3, 64, 1024])
@pytest.mark.parametrize("axis", ["token", "position", "seed"])
def test_neighbours_are_independent(axis: str, distance: int) -> None:
    """Joint distribution of the high bits (16 x 16 bins) and of the low bits of two neighbours."""
    count = 1 << 15
    if axis == "token":
        bits = bits_of(keys_of([3, 4], [9, 10]), count)
        first, second = bits[:, :-distance], bits[:, distance:]
    elif axis == "position":
        positions = list(range(4096))
        bits = bits_of(keys_of([3, 4], positions), 16).reshape(2, len(positions), 16)
        first, second = bits[:, :-distance], bits[:, distance:]
    else:
        bits = bits_of(keys_of(list(range(4096)), [9]), 32)
        first, second = bits[:-distance], bits[distance:]
    for shift in (0, 28):
        pairs = ((first >> shift) & 15) * 16 + ((second >> shift) & 15)
        p_value = float(stats.chisquare(np.bincount(pairs.ravel(), minlength=256)).pvalue)
        assert 1e-4 < p_value < 1 - 1e-4


@pytest.mark.parametrize("what", ["key", "position", "token"])
def test_avalanche(what: str) -> None:
    """Flipping any input bit flips each output bit with probability one half."""
    rng = np.random.default_rng(0)
    count = 4096
    base = torch.from_numpy(rng.integers(-(1 << 31), 1 << 31, (count, 2)).astype(np.int32))
    positions = torch.from_numpy(rng.integers(0, 1 << 17, count).astype(np.int32))
    ids = torch.from_numpy(rng.integers(0, 1 << 18, (count, 1)).astype(np.int32))

    def number(b: torch.Tensor, p: torch.Tensor, i: torch.Tensor) -> np.ndarray:
        return random_bits(position_keys(b, p), i).numpy().view(np.uint32)[:, 0]

    plain = number(base, positions, ids)
    width = {"key": 32, "position": 17, "token": 18}[what]
    for bit in range(width):
        flip = torch.tensor(-(1 << 31) if bit == 31 else 1 << bit, dtype=torch.int32)
        if what == "key":
            changed = number(base ^ torch.stack((flip, torch.zeros_like(flip))), positions, ids)
        elif what == "position":
            changed = number(base, positions ^ flip, ids)
        else:
            changed = number(base, positions, ids ^ flip)
        flipped = np.unpackbits((plain ^ changed).view(np.uint8).reshape(count, 4), axis=1)
        assert np.abs(flipped.mean(axis=0) - 0.5).max() < 5 * 0.5 / math.sqrt(count)


def test_exponential_has_its_distribution_and_stays_positive() -> None:
    bits = random_bits(keys_of([5], [0, 1]), torch.arange(1 << 16, dtype=torch.int32))
    times = exponential(bits).double().numpy().ravel()
    assert times.min() > 0
    assert stats.kstest(times, "expon").pvalue > 1e-4


def test_exponential_is_precise_near_zero_and_finite_at_the_end() -> None:
    words = np.array([0, 1, 1000, 1 << 20, (1 << 32) - 1], np.uint32)
    times = exponential(torch.from_numpy(words.view(np.int32))).double().numpy()
    exact = -np.log1p(-(words.astype(np.float64) + 0.5) / 2.0**32)
    np.testing.assert_allclose(times[:4], exact[:4], rtol=1e-6)
    assert 16 < times[4] < 17


def test_smallest_time_of_many_is_exponential_too() -> None:
    """The minimum over 32,000 tokens decides draws: its distribution must hold in the tail."""
    times = exponential(bits_tensor(2000, 32000)).min(dim=1).values.double().numpy() * 32000
    assert stats.kstest(times, "expon").pvalue > 1e-4


def bits_tensor(rows: int, count: int) -> torch.Tensor:
    return random_bits(keys_of([11], list(range(rows))), torch.arange(count, dtype=torch.int32))
