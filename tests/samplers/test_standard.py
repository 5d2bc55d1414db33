"""The standard sampler: kept sets, distributions, and independence of everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nanofw.contracts.requests import SamplingParams
from nanofw.kernels.sampling import greedy
from nanofw.samplers import standard
from tests.marks import others_slow
from tests.samplers.plain import draw, kept_tokens, new_row, probabilities, sampler_for
from tests.samplers.plain import sample as sample_edited


def sample(
    logits: np.ndarray,
    parameters: list[SamplingParams],
    *,
    seeds: list[int] | None = None,
    positions: list[int] | None = None,
    order: list[int] | None = None,
) -> tuple[list[int], list[bool]]:
    """Draw one token per line; line i has row i. `order` permutes the lines of the batch."""
    count = len(parameters)
    sampler = sampler_for(logits.shape[1], max(64, count))
    for row, sampling in enumerate(parameters):
        sampler.add_row(new_row(row, sampling, seed=seeds[row] if seeds else row))
    order = order or list(range(count))
    places = np.array(positions or [3] * count, np.int32)[order]
    result = sample_edited(
        sampler,
        torch.from_numpy(logits[order].astype(np.float32)),
        np.array(order, np.int32),
        places,
    )
    tokens, failed = [0] * count, [False] * count
    for line, row in enumerate(order):
        tokens[row], failed[row] = int(result.token_ids[line]), bool(result.failed[line])
    return tokens, failed


def drawn_set(logits: np.ndarray, sampling: SamplingParams, draws: int = 4000) -> set[int]:
    """All tokens that come up in many draws at different positions."""
    lines = np.broadcast_to(logits, (draws, len(logits)))
    tokens, _ = sample(lines, [sampling] * draws, seeds=[7] * draws, positions=list(range(draws)))
    return set(tokens)


FOUR = np.log(np.array([0.1, 0.2, 0.3, 0.4]))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_p": 0.6}, {3, 2}),
        ({"top_p": 0.39}, {3}),
        ({"top_p": 1e-9}, {3}),
        ({"top_p": 0.71}, {3, 2, 1}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 2}, {3, 2}),
        ({"top_k": 1}, {3}),
        ({"top_k": 3, "top_p": 0.6}, {3, 2}),  # 0.4 / 0.9 < 0.6 <= 0.7 / 0.9
        ({"top_k": 2, "top_p": 0.57}, {3}),  # 0.4 / 0.7 = 0.571
        ({"temperature": 0.0}, {3}),
        ({"temperature": 0.0, "top_k": 4, "top_p": 0.9}, {3}),
    ],
)
def test_B045_kept_sets(sampling: dict[str, Any], kept: set[int]) -> None:
    assert drawn_set(FOUR, SamplingParams(**sampling)) == kept


@pytest.mark.parametrize("top_k", [999, 32, -1, 0])
def test_B046_top_k_past_the_vocabulary_or_off_is_no_limit(top_k: int) -> None:
    assert drawn_set(np.zeros(32), SamplingParams(top_k=top_k)) == set(range(32))


def test_B044_B046_greedy_and_sampled_rows_in_one_batch() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 50)) * 3
    parameters = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0, top_k=5),
        SamplingParams(top_k=5),
        SamplingParams(temperature=1e-9),
        SamplingParams(top_p=0.5),
    ]
    tokens, failed = sample(logits, parameters)
    assert not any(failed)
    for row in (0, 2, 4):
        assert tokens[row] == logits[row].argmax()
    for row in (1, 3, 5):
        assert tokens[row] in kept_tokens(logits[row], parameters[row])


@pytest.mark.parametrize("vocab", [50, 96, 320, 1280, 1281])
def test_greedy_takes_the_first_of_the_highest(vocab: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 9, (300, vocab), generator=generator).float()
    logits[7, vocab // 2] = torch.nan
    highest, token_ids = greedy(logits)
    for row in range(300):
        line = logits[row].tolist()
        if row == 7:
            assert highest[row].isnan()
        else:
            assert (highest[row], token_ids[row]) == (max(line), line.index(max(line)))


@pytest.mark.parametrize("vocab", [40, 200, 3000])
def test_ties_at_the_border_go_to_the_lower_token(vocab: int) -> None:
    logits = np.full(vocab, -30.0)
    logits[6] = 2.0
    logits[[5, 9, 11, 20, 33]] = 1.0
    assert drawn_set(logits, SamplingParams(top_k=3), draws=300) == {6, 5, 9}
    logits[:] = 0.0
    assert drawn_set(logits, SamplingParams(top_k=4), draws=300) == {0, 1, 2, 3}
    assert drawn_set(logits, SamplingParams(top_p=3.5 / vocab), draws=300) == {0, 1, 2, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_B048_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(8, 100))
    parameters = [
        SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=5),
        SamplingParams(top_p=0.9),
    ] * 2  # fmt: skip
    good, _ = sample(logits, parameters)
    broken = logits.copy()
    broken[:4, 17] = bad
    tokens, failed = sample(broken, parameters)
    assert failed == [True] * 4 + [False] * 4
    assert tokens[4:] == good[4:]
    assert all(0 <= token < 100 for token in tokens)


def test_B048_a_row_without_any_allowed_token_fails() -> None:
    logits = np.zeros((3, 10))
    logits[1] = -np.inf
    for sampling in (SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=2)):
        _, failed = sample(logits, [sampling] * 3)
        assert failed == [False, True, False]


@pytest.mark.parametrize("seed", others_slow(0, 1, 2))
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=1.5, top_k=12, top_p=0.9),
    ],
)
def test_draws_follow_the_exact_probabilities(sampling: SamplingParams, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=24) * 1.5
    draws = 20000
    lines = np.broadcast_to(logits, (draws, 24))
    tokens, _ = sample(
        lines, [sampling] * draws, seeds=[seed] * draws, positions=list(range(draws))
    )
    kept = kept_tokens(logits.astype(np.float32), sampling)
    expected = probabilities(logits, kept, sampling.temperature) * draws
    counts = np.bincount(tokens, minlength=24)
    assert counts.sum() == counts[kept].sum()
    few = expected < 5
    observed = [*counts[kept][~few], counts[kept][few].sum()]
    wanted = [*expected[~few], expected[few].sum()]
    if not few.any():
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


def random_parameters(rng: np.random.Generator, vocab: int) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.8])),
        top_k=int(rng.choice([-1, 0, 1, 3, 40, 63, 64, 65, 500, vocab, vocab + 9])),
        top_p=float(rng.choice([1.0, 0.95, 0.7, 0.2, 1e-6])),
        min_p=float(rng.choice([0.0, 0.0, 1e-4, 0.05, 0.5])),
    )


@pytest.mark.parametrize("vocab", [30, 400, 2500])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_equals_the_plain_reference_on_random_mixes(vocab: int, spread: float) -> None:
    rng = np.random.default_rng([vocab, int(spread * 10)])
    count = 120
    logits = (rng.normal(size=(count, vocab)) * spread).astype(np.float32)
    parameters = [random_parameters(rng, vocab) for _ in range(count)]
    seeds = [int(s) for s in rng.integers(-(1 << 62), 1 << 62, count)]
    positions = [int(p) for p in rng.integers(0, 5000, count)]
    tokens, failed = sample(logits, parameters, seeds=seeds, positions=positions)
    assert not any(failed)
    ties = 0
    for row in range(count):
        expected, gap = draw(logits[row], parameters[row], seeds[row], 0, positions[row])
        if gap < 1e-5:
            ties += 1
            continue
        assert tokens[row] == expected, (row, parameters[row])
    assert ties < count / 20


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), vocab=st.sampled_from([33, 300, 1500]))
def test_neither_order_nor_company_matters(seed: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 20))
    logits = (rng.normal(size=(count, vocab)) * 2).astype(np.float32)
    parameters = [random_parameters(rng, vocab) for _ in range(count)]
    tokens, _ = sample(logits, parameters)
    shuffled, _ = sample(logits, parameters, order=[int(i) for i in rng.permutation(count)])
    assert shuffled == tokens
    alone = int(rng.integers(count))
    single, _ = sample(logits[alone : alone + 1], [parameters[alone]], seeds=[alone])
    assert single == [tokens[alone]]


def test_long_lists_are_tried_only_when_short_ones_cannot_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flat logits: top-p keeps thousands of tokens, so that every list length is needed."""
    lengths: list[int] = []
    original = standard.ordered_candidates

    def spy(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths.append(count)
        return original(logits, count)

    monkeypatch.setattr(standard, "ordered_candidates", spy)
    peaked, flat = np.zeros((1, 3000)), np.zeros((1, 3000))
    peaked[0, 8] = 30
    sample(peaked, [SamplingParams(top_p=0.9)])
    assert lengths == [64]
    sample(np.concatenate((peaked, flat)), [SamplingParams(top_p=0.9)] * 2)
    assert lengths == [64, 64, 1024, 3000]
    lengths.clear()
    sample(flat, [SamplingParams(top_k=200)])
    assert lengths == [1024, 3000]  # all logits are equal: the short list cannot tell


def test_rows_are_reused_and_changed_between_steps() -> None:
    sampler = sampler_for(16)
    logits = torch.arange(16.0).repeat(2, 1)
    rows, places = np.array([4, 5], np.int32), np.array([0, 0], np.int32)
    sampler.add_row(new_row(4, SamplingParams(temperature=0)))
    sampler.add_row(new_row(5, SamplingParams(top_k=1)))
    assert sample_edited(sampler, logits.clone(), rows, places).token_ids.tolist() == [15, 15]
    sampler.remove_row(5)
    sampler.add_row(new_row(5, SamplingParams(temperature=50.0), seed=3))
    drawn = {
        int(sample_edited(sampler, logits.clone(), rows, places + step).token_ids[1])
        for step in range(200)
    }
    assert len(drawn) == 16


@pytest.mark.parametrize("vocab", [50, 128])
def test_no_lines_at_all(vocab: int) -> None:
    """A step of chunks that are not the last samples nothing."""
    nobody = np.empty(0, np.int32)
    result = sample_edited(sampler_for(vocab), torch.empty(0, vocab), nobody, nobody)
    assert len(result.token_ids) == len(result.failed) == 0


def test_siblings_and_seeds_differ() -> None:
    sampler = sampler_for(1000)
    for row in range(32):
        sampler.add_row(new_row(row, SamplingParams(), seed=row // 16, sample_index=row % 16))
    rows = np.arange(32, dtype=np.int32)
    tokens = sample_edited(sampler, torch.zeros(32, 1000), rows, rows * 0).token_ids.tolist()
    assert len(set(tokens)) > 28
