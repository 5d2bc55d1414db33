"""Samples and cut-offs against torch, on the same random numbers."""

from __future__ import annotations

import pytest
import torch

from nanofw.kernels import random
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.triton.cutoff import cutoffs_of
from nanofw.kernels.triton.sampling import sample_tokens
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import device


def make_rows(temperatures: list[float]):
    inverse = torch.tensor([1 / t if t else 0.0 for t in temperatures])
    keys = torch.tensor(
        [random.base_key(100 + i, i % 3) for i in range(len(temperatures))], dtype=torch.int32
    )
    return inverse.to(device()), keys.to(device())


def expected_sample(logits, rows, inverse, keys, positions, offset=0, kept=None):
    row = rows.long()
    tokens = torch.arange(offset, offset + logits.shape[1], dtype=torch.int32, device=device())
    noise = random.exponential(
        random.random_bits(random.position_keys(keys[row], positions), tokens)
    )
    x = logits.float() if kept is None else logits.float().masked_fill(~kept, -torch.inf)
    t = inverse[row][:, None]
    return torch.where(t > 0, x * t - noise.log(), x).argmax(-1)


def sample(logits, rows, inverse, keys, positions, **options):
    none = torch.zeros(0, device=device())
    arrays = RowSampling(inverse, keys, none, none, none)  # the cut-offs are given
    return sample_tokens(logits, rows, arrays, positions, **options)


def indices(count: int) -> torch.Tensor:
    return torch.arange(count, device=device())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [3, 300, 5000])
def test_samples_are_those_of_the_reference(dtype, vocab) -> None:
    torch.manual_seed(0)
    inverse, keys = make_rows([1.0, 0.0, 0.3, 2.5, 1.0, 0.7])
    rows = torch.tensor([4, 1, 0, 5, 2], device=device())
    positions = torch.tensor([0, 7, 1000, 3, 40000], dtype=torch.int32, device=device())
    logits = (torch.randn(5, vocab, device=device()) * 3).to(dtype)
    sampled = sample(logits, rows, inverse, keys, positions)
    expected = expected_sample(logits, rows, inverse, keys, positions)
    assert sampled.token_ids.tolist() == expected.tolist()
    assert not sampled.failed.any()
    wanted = logits.float().log_softmax(-1).gather(1, expected[:, None])[:, 0]
    torch.testing.assert_close(sampled.logprobs, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parts", [2, 3])
def test_samples_do_not_depend_on_the_split(parts) -> None:
    inverse, keys = make_rows([1.0, 0.5])
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(5)).to(device())
    whole = sample(logits, indices(2), inverse, keys, indices(2), num_parts=1)
    split = sample(logits, indices(2), inverse, keys, indices(2), num_parts=parts)
    assert torch.equal(whole.token_ids, split.token_ids)
    torch.testing.assert_close(whole.logprobs, split.logprobs)


def test_numbers_belong_to_ids_of_the_whole_vocabulary() -> None:
    inverse, keys = make_rows([1.0])
    logits = torch.zeros(1, 1000, device=device())
    whole = int(sample(logits, indices(1), inverse, keys, indices(1)).token_ids)
    half = slice(500, 1000) if whole >= 500 else slice(0, 500)
    part = sample(logits[:, half], indices(1), inverse, keys, indices(1), vocab_offset=half.start)
    assert int(part.token_ids) == whole


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    inverse, keys = make_rows([0.0])
    logits = torch.zeros(1, 5000, device=device())
    logits[0, [17, 3000, 4999]] = 2.0
    for parts in (1, 3):
        sampled = sample(logits, indices(1), inverse, keys, indices(1), num_parts=parts)
        assert sampled.token_ids.tolist() == [17]


# The interpreter's numpy warns where a GPU is silent.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("where", [0, 2500, 4999])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_line_without_finite_logits_fails_alone(where, bad) -> None:
    inverse, keys = make_rows([1.0] * 3)
    logits = torch.randn(3, 5000, device=device())
    logits[1, where] = bad
    logits[2] = -torch.inf
    sampled = sample(logits, indices(3), inverse, keys, indices(3), num_parts=2)
    assert sampled.failed.tolist() == [False, True, True]
    assert sampled.token_ids.tolist()[1:] == [0, 0]


def keep_sorted(logits, inverse_temperature, top_k, top_p, min_p):
    """The kept tokens of one line, by sorting: falling logits, equal ones by id."""
    ordered, ids = logits.double().sort(descending=True, stable=True)
    weights = ((ordered - ordered[0]) * inverse_temperature).exp()
    limit = top_k if 0 < top_k < len(logits) else len(logits)
    weights[limit:] = 0.0
    weights[weights < min_p] = 0.0
    before = weights.cumsum(0) - weights
    kept = (before < top_p * weights.sum()) if top_p < 1 else torch.ones_like(before).bool()
    kept &= torch.arange(len(logits), device=kept.device) < limit
    kept &= weights >= min_p
    kept[0] = True
    out = torch.zeros_like(kept)
    out[ids] = kept
    return out


CASES = [
    # temperature, top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (0.7, 0, 0.9, 0.0),
    (1.3, 20, 0.5, 0.0),
    (0.8, 0, 1.0, 0.1),
    (1.0, 1, 0.3, 0.0),
    (2.0, 40, 0.95, 0.02),
    (0.0, 3, 0.5, 0.2),
    (1.0, 10**9, 1.0, 0.0),
    (1.0, -1, 1e-6, 0.0),
    (1.0, 0, 0.8, 0.05),
    (0.9, 30, 0.6, 0.01),
    (1.0, 0, 1.0, 1.0),
]


def cut(logits, cases):
    temperatures, top_k, top_p, min_p = zip(*cases, strict=True)
    inverse, keys = make_rows(list(temperatures))
    return (
        inverse,
        keys,
        cutoffs_of(
            logits,
            indices(len(cases)),
            RowSampling(
                inverse,
                keys,
                torch.tensor(top_k, dtype=torch.int32, device=device()),
                torch.tensor(top_p, device=device()),
                torch.tensor(min_p, device=device()),
            ),
        ),
    )


def kept_by(found, logits) -> torch.Tensor:
    bits = (logits.float() + 0.0).view(torch.int32)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    at_cut = (keys == found.keys[:, None]) & (ids <= found.last_ids[:, None])
    return (keys > found.keys[:, None]) | at_cut


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [50, pytest.param(9000, marks=slow_in_interpreter)])
def test_cutoffs_keep_what_sorting_keeps(vocab, dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(CASES), vocab, generator=generator).to(dtype).to(device())
    inverse, _, found = cut(logits, CASES)
    kept = kept_by(found, logits)
    for i, (temperature, *rules) in enumerate(CASES):
        if temperature == 0.0:
            assert kept[i].all()
            continue
        expected = keep_sorted(logits[i].float(), inverse[i].double(), *rules)
        # Only a token at the very edge of the mass may differ, by rounding.
        assert (kept[i] != expected).sum() <= (rules[1] < 1 or rules[2] > 0), CASES[i]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((2, 1.0), [0, 1, 1, 0, 0]),
        ((0, 0.3), [0, 1, 1, 0, 0]),
        ((3, 0.9), [0, 1, 1, 0, 1]),
        ((4, 1.0), [1, 1, 1, 0, 1]),
    ],
)
def test_a_tie_is_cut_by_id(rules, expected) -> None:
    # Shares of the mass: three of about 0.3, then 0.1 together.
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.5, 3.0]], device=device())
    _, _, found = cut(logits, [(1.0, *rules, 0.0)])
    if rules == (0, 0.3):
        share = logits.softmax(-1)[0, 1].item()
        expected = [0, 1, int(share < 0.3), 0, 0]
    assert kept_by(found, logits)[0].int().tolist() == expected


def test_a_cut_sample_is_one_of_the_kept() -> None:
    cases = [(1.0, 4, 1.0, 0.0)] * 6 + [(0.8, 0, 0.5, 0.0)] * 6
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(12, 200, generator=generator).to(device())
    inverse, keys, found = cut(logits, cases)
    positions = torch.arange(12, dtype=torch.int32, device=device())
    sampled = sample(logits, indices(12), inverse, keys, positions, cutoffs=found)
    expected = expected_sample(
        logits, indices(12), inverse, keys, positions, kept=kept_by(found, logits)
    )
    assert sampled.token_ids.tolist() == expected.tolist()
    assert len(set(sampled.token_ids.tolist())) > 3
