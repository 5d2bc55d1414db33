"""Each sampling parameter against probabilities worked out by hand, and their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from nanofw.contracts.requests import SamplingParams
from tests.marks import others_slow
from tests.samplers.plain import edited, kept_tokens, new_row, probabilities, sample, sampler_for

DRAWS = 6000
PROBABILITIES = [0.1, 0.2, 0.3, 0.4]
FOUR = np.log(np.array(PROBABILITIES))
LN_2 = float(np.log(2))
PROMPT, OUTPUT = [0, 2], [3, 3, 1]


def counts(
    logits: np.ndarray, sampling: SamplingParams, seed: int, *, output: list[int] | None = None
) -> np.ndarray:
    """How often each token came up, one draw a position."""
    sampler = sampler_for(len(logits), DRAWS, eos_token_ids=(3,))
    output = OUTPUT if output is None else output
    for row in range(DRAWS):
        sampler.add_row(new_row(row, sampling, seed=seed + row, prompt=PROMPT, output=output))
    lines = torch.from_numpy(logits.astype(np.float32)).repeat(DRAWS, 1)
    rows = np.arange(DRAWS, dtype=np.int32)
    position = len(PROMPT) + len(output)
    drawn = sample(sampler, lines, rows, np.full(DRAWS, position, np.int32))
    assert not drawn.failed.any()
    return np.bincount(drawn.token_ids.numpy(), minlength=len(logits))


def assert_follows(observed: np.ndarray, expected: list[float] | np.ndarray) -> None:
    """Chi-squared; what must not come up never came up."""
    wanted = np.asarray(expected) / np.sum(expected)
    assert observed[wanted == 0].sum() == 0
    possible = wanted > 0
    if possible.sum() > 1:
        test = stats.chisquare(observed[possible], wanted[possible] * observed.sum())
        assert test.pvalue > 1e-4


@pytest.mark.parametrize("seed", others_slow(0, 1_000_000, 2_000_000))
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, [0.01, 0.04, 0.09, 0.16]),
        ({"top_k": 2}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.71}, [0, 0.2, 0.3, 0.4]),
        ({"min_p": 0.45}, [0, 0.2, 0.3, 0.4]),
        ({"min_p": 0.55}, [0, 0, 0.3, 0.4]),
        ({"min_p": 1.0}, [0, 0, 0, 0.4]),
        ({"min_p": 1e-9}, PROBABILITIES),
        ({"min_p": 0.3, "temperature": 0.5}, [0, 0, 0.09, 0.16]),  # after the temperature
        ({"logit_bias": {0: 2 * LN_2, 3: -LN_2}}, [0.4, 0.2, 0.3, 0.2]),
        ({"logit_bias": {2: -100.0}}, [0.1, 0.2, 0, 0.4]),
        ({"presence_penalty": LN_2}, [0.1, 0.1, 0.3, 0.2]),
        ({"presence_penalty": -LN_2}, [0.1, 0.4, 0.3, 0.8]),
        ({"frequency_penalty": LN_2}, [0.1, 0.1, 0.3, 0.1]),
        ({"frequency_penalty": LN_2, "presence_penalty": LN_2}, [0.1, 0.05, 0.3, 0.05]),
        # All logits are negative: the penalty squares the probabilities of what there is.
        ({"repetition_penalty": 2.0}, [0.01, 0.04, 0.09, 0.16]),
        ({"bad_words": ((3,),)}, [0.1, 0.2, 0.3, 0]),
        ({"bad_words": ((3, 1, 2), (3, 3, 1, 0), (2, 3))}, [0, 0.2, 0, 0.4]),
        ({"bad_words": ((2, 3, 3, 1, 3),)}, PROBABILITIES),  # it would begin in the prompt
        ({"min_tokens": 4}, [0.1, 0.2, 0.3, 0]),
        ({"min_tokens": 3}, PROBABILITIES),
        ({"min_tokens": 4, "stop_token_ids": (1,)}, [0.1, 0, 0.3, 0]),
        ({"min_tokens": 4, "stop_token_ids": (1,), "ignore_eos": True}, [0.1, 0, 0.3, 0.4]),
    ],
)
def test_exact_probabilities(parameters: dict[str, Any], expected: list[float], seed: int) -> None:
    assert_follows(counts(FOUR, SamplingParams(**parameters), seed), expected)


def test_repetition_divides_positive_logits_and_multiplies_negative_ones() -> None:
    """Tokens 0 and 2 are in the prompt, 1 and 3 in the output, 4 in neither."""
    logits = np.array([2.0, -0.5, -1.0, 1.0, 0.5])
    expected = np.exp([1.0, -1.0, -2.0, 0.5, 0.5])
    assert_follows(counts(logits, SamplingParams(repetition_penalty=2.0), 7), expected)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [(5e-324, [1, 0, 0, 0, 0]), (1e308, [1, 0, 0, 1, np.exp(0.5)])],
)
def test_the_least_and_the_largest_repetition_penalty(
    penalty: float, expected: list[float]
) -> None:
    logits = np.array([2.0, -0.5, -1.0, 1.0, 0.5])
    assert_follows(counts(logits, SamplingParams(repetition_penalty=penalty), 7), expected)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        # min_p leaves .2 .3 .4, of which the last two are more than 0.75; top_p alone needs three.
        ({"min_p": 0.45, "top_p": 0.75}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.75}, [0, 0.2, 0.3, 0.4]),
        ({"min_p": 0.45, "top_k": 1}, [0, 0, 0, 1]),
        # The bias comes before the penalty, which squares what it finds.
        ({"repetition_penalty": 2.0, "logit_bias": {0: LN_2}}, [0.04, 0.04, 0.09, 0.16]),
        # A penalty comes before the temperature.
        ({"presence_penalty": LN_2, "temperature": 0.5}, [0.01, 0.01, 0.09, 0.04]),
        # What is banned is not the most likely token that min_p measures by.
        ({"min_p": 0.6, "bad_words": ((3,),)}, [0, 0.2, 0.3, 0]),
        ({"top_k": 2, "min_tokens": 4}, [0, 0.2, 0.3, 0]),
    ],
)
def test_order_of_the_parameters(parameters: dict[str, Any], expected: list[float]) -> None:
    assert_follows(counts(FOUR, SamplingParams(**parameters), 11), expected)


@pytest.mark.parametrize("seed", others_slow(0, 1, 2))
def test_everything_at_once(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=40) * 1.5
    sampling = SamplingParams(
        temperature=1.3, top_k=30, top_p=0.95, min_p=0.02, repetition_penalty=1.3,
        presence_penalty=0.4, frequency_penalty=0.3, logit_bias={5: 1.5, 9: -2.0},
        bad_words=((7,), (1, 12)), min_tokens=5,
    )  # fmt: skip
    changed = edited(logits.astype(np.float32), sampling, PROMPT, OUTPUT, (3,))
    kept = kept_tokens(changed, sampling)
    expected = np.zeros(40)
    expected[kept] = probabilities(changed, kept, sampling.temperature)
    assert_follows(counts(logits, sampling, 1000 * seed), expected)


def test_greedy_rows_are_biased_banned_and_penalised_too() -> None:
    for parameters, token in [
        ({"logit_bias": {0: 5.0}}, 0),
        ({"presence_penalty": 2.0}, 2),
        ({"repetition_penalty": 1e9}, 2),
        ({"bad_words": ((3,), (1, 2))}, 1),
        ({"min_tokens": 9}, 2),
    ]:
        output = [3, 3, 1]
        sampler = sampler_for(4, eos_token_ids=(3,))
        sampling = SamplingParams(temperature=0, **parameters)
        prompt = [0] if "logit_bias" in parameters else [1]
        sampler.add_row(new_row(0, sampling, prompt=prompt, output=output))
        lines = torch.from_numpy(FOUR.astype(np.float32))[None]
        zero = np.zeros(1, np.int32)
        assert sample(sampler, lines, zero, zero + 4).token_ids.tolist() == [token], parameters


def test_B051_order_of_requests_with_penalties_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(6, 2, 50)).astype(np.float32)
    requests = [
        SamplingParams(temperature=0, repetition_penalty=2.0),
        SamplingParams(top_k=1, seed=99),
    ]

    def run(order: list[int]) -> list[list[int]]:
        sampler = sampler_for(50)
        for row in order:
            sampler.add_row(new_row(row, requests[row], seed=99, prompt=range(20)))
        rows = np.array(order, np.int32)
        drawn: list[list[int]] = [[], []]
        for step in range(6):
            lines = torch.from_numpy(logits[step, order])
            tokens = sample(sampler, lines, rows, np.full(len(order), 20 + step, np.int32))
            for row, token in zip(order, tokens.token_ids.tolist(), strict=True):
                drawn[row].append(token)
        return drawn

    both = run([0, 1])
    assert both == run([1, 0])
    assert both == [run([0])[0], run([1])[1]]
    assert both[1] == logits[:, 1].argmax(-1).tolist()
    assert both[0] != logits[:, 0].argmax(-1).tolist()
