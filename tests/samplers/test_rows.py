"""What rows keep between steps, and that nobody pays for what nobody asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nanofw.contracts.requests import SamplingParams
from tests.samplers.plain import new_row, sample, sampler_for

VOCAB = 512
SEARCH = {"max", "amax", "argmax", "view", "index"}
"""What finds the highest logit of each line."""


class WideOperations(TorchDispatchMode):
    """Names of the operations on whole lines of the vocabulary, and most lines of each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        lines = max((tensor.numel() // VOCAB for tensor in tensors), default=0)
        if lines:
            self.seen.append((func.overloadpacket.__name__, lines))
        return func(*args, **(kwargs or {}))


def wide_operations(parameters: list[SamplingParams]) -> list[tuple[str, int]]:
    sampler = sampler_for(VOCAB)
    for row, sampling in enumerate(parameters):
        sampler.add_row(new_row(row, sampling))
    rows = np.arange(len(parameters), dtype=np.int32)
    with WideOperations() as operations:
        sample(sampler, torch.zeros(len(rows), VOCAB), rows, rows * 0 + 1)
    return operations.seen


def test_greedy_rows_only_look_for_the_highest_logit() -> None:
    names = {name for name, _ in wide_operations([SamplingParams(temperature=0)] * 5)}
    assert names <= SEARCH


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_p=0.9)])
def test_rows_without_an_option_do_no_work_for_one_that_has_it(sampling: SamplingParams) -> None:
    option = SamplingParams(temperature=0, presence_penalty=1.0, bad_words=((1, 2), (3,)))
    alone = wide_operations([sampling] * 7)
    beside = wide_operations([sampling] * 7 + [option])
    assert ("addcmul_", 1) in beside
    moves = SEARCH | {"index_put_"}  # lines picked out and single numbers
    assert [
        (name, lines)
        for name, lines in (Counter(beside) - Counter(alone)).elements()
        if lines > 1 and name not in moves
    ] == []


def test_counts_exist_only_after_somebody_asked() -> None:
    sampler = sampler_for(VOCAB)
    penalties = sampler._edits._penalties
    whole = sampler.deferred_bytes
    sampler.add_row(new_row(0, SamplingParams(min_p=0.1, logit_bias={3: 1.0}, bad_words=((1,),))))
    assert penalties._counts is None
    sampler.add_row(new_row(1, SamplingParams(frequency_penalty=0.1)))
    assert penalties._counts is not None
    assert penalties._in_prompt is None
    assert whole == sampler.deferred_bytes + penalties._counts.nbytes
    sampler.add_row(new_row(1, SamplingParams(repetition_penalty=1.1)))
    assert penalties._in_prompt is not None
    assert whole == penalties._counts.nbytes + penalties._in_prompt.nbytes
    assert sampler.deferred_bytes == 0


def greedy_steps(sampler: Any, rows: list[int], steps: int, logits: list[float]) -> list[list[int]]:
    drawn = []
    for step in range(steps):
        lines = torch.tensor([logits] * len(rows))
        result = sample(sampler, lines, np.array(rows, np.int32), np.full(len(rows), step + 1))
        drawn.append(result.token_ids.tolist())
    return [list(tokens) for tokens in zip(*drawn, strict=True)]


def test_a_draw_is_counted_before_the_next_one() -> None:
    """No token comes twice, although nobody tells the sampler what was drawn."""
    sampler = sampler_for(8)
    sampling = SamplingParams(temperature=0, presence_penalty=2.0)
    logits = [0.5, 0.4, 0.3, 0.2, 0.1, 0.0, -0.1, -0.2]
    sampler.add_row(new_row(3, sampling))
    sampler.add_row(new_row(1, SamplingParams(temperature=0)))
    assert greedy_steps(sampler, [3, 1], 8, logits) == [list(range(8)), [0] * 8]


def test_prompt_and_output_are_counted_apart() -> None:
    logits = [0.5, 0.4, 0.3, 0.2]
    for sampling, expected in [
        (SamplingParams(temperature=0, presence_penalty=2.0), 0),  # the prompt does not count
        (SamplingParams(temperature=0, repetition_penalty=9.0), 1),  # the prompt counts
    ]:
        sampler = sampler_for(4)
        sampler.add_row(new_row(0, sampling, prompt=[0, 0, 0]))
        assert greedy_steps(sampler, [0], 1, logits) == [[expected]]


RESET: list[Callable[[Any], None]] = [
    lambda sampler: None,
    lambda sampler: sampler.remove_row(0),
]


@pytest.mark.parametrize("leave", RESET)
@pytest.mark.parametrize(
    "parameters",
    [
        {"presence_penalty": 2.0},
        {"repetition_penalty": 50.0},
        {"frequency_penalty": 2.0},
        {"bad_words": ((0,), (1, 1))},
        {"logit_bias": {0: -100.0}},
        {"min_tokens": 5, "stop_token_ids": (0,)},
    ],
)
def test_a_row_knows_nothing_of_the_request_before(
    parameters: dict[str, Any], leave: Callable[[Any], None]
) -> None:
    logits = [0.5, 0.4, 0.3, 0.2]
    sampling = SamplingParams(temperature=0, **parameters)

    def first(sampler: Any) -> list[list[int]]:
        sampler.add_row(new_row(0, sampling, prompt=[2]))
        return greedy_steps(sampler, [0], 5, logits)

    used = sampler_for(4)
    expected = first(used)
    assert expected != [[0] * 5]
    leave(used)
    used.add_row(new_row(0, SamplingParams(temperature=0)))
    assert greedy_steps(used, [0], 5, logits) == [[0] * 5]
    leave(used)
    assert first(used) == expected


def test_longer_words_may_come_later() -> None:
    """The history becomes wider while a row with shorter words runs."""
    logits = [0.5, 0.4, 0.3, 0.2]
    sampler = sampler_for(4)
    sampler.add_row(new_row(0, SamplingParams(temperature=0, bad_words=((0, 0),))))
    assert greedy_steps(sampler, [0], 1, logits) == [[0]]
    sampler.add_row(new_row(1, SamplingParams(temperature=0, bad_words=((0, 0, 0), (0, 0, 1, 0)))))
    assert greedy_steps(sampler, [0, 1], 5, logits) == [[1, 0, 1, 0, 1], [0, 0, 1, 1, 0]]


def test_min_tokens_end_by_themselves_while_the_rows_stay() -> None:
    sampler = sampler_for(4, eos_token_ids=(0,))
    sampler.add_row(new_row(0, SamplingParams(temperature=0, min_tokens=3)))
    sampler.add_row(new_row(1, SamplingParams(temperature=0, min_tokens=1)))
    assert greedy_steps(sampler, [0, 1], 5, [0.5, 0.4, 0.3, 0.2]) == [
        [1, 1, 1, 0, 0],
        [1, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "parameters",
    [
        {"logit_bias": {1: -100.0}},
        {"bad_words": ((1,),)},
        {"bad_words": ((0, 1),)},
        {"repetition_penalty": 2.0},
        {"repetition_penalty": 1e300},
        {"presence_penalty": 1.0, "frequency_penalty": -1.0},
        {"min_p": 0.5},
        {"min_tokens": 3, "stop_token_ids": (1,)},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_B048_no_option_hides_a_logit_that_is_not_finite(
    parameters: dict[str, Any], bad: float, temperature: float
) -> None:
    sampler = sampler_for(6)
    sampling = SamplingParams(temperature=temperature, **parameters)
    for row in range(3):
        sampler.add_row(new_row(row, sampling, prompt=[1, 2], output=[0]))
    lines = torch.zeros(3, 6)
    lines[1, 1] = bad
    lines[2, 1:] = -torch.inf  # as a processor may leave them
    rows = np.arange(3, dtype=np.int32)
    assert sample(sampler, lines, rows, rows * 0 + 3).failed.tolist() == [False, True, False]


def test_a_request_without_any_token_left_fails_alone() -> None:
    sampler = sampler_for(3)
    every = tuple((token,) for token in range(3))
    sampler.add_row(new_row(0, SamplingParams(bad_words=every)))
    sampler.add_row(new_row(1, SamplingParams(bad_words=every[:2])))
    rows = np.arange(2, dtype=np.int32)
    drawn = sample(sampler, torch.zeros(2, 3), rows, rows * 0 + 1)
    assert drawn.failed.tolist() == [True, False]
    assert drawn.token_ids.tolist() == [0, 2]


def test_edits_say_whom_they_concern() -> None:
    sampler = sampler_for(8, eos_token_ids=(0,))
    plain = SamplingParams(temperature=0.5, top_k=3, min_p=0.1, seed=4)
    options: list[dict[str, Any]] = [
        {"logit_bias": {1: 1.0}}, {"bad_words": ((1,),)}, {"bad_words": ((1, 2),)},
        {"min_tokens": 1}, {"presence_penalty": 0.1}, {"repetition_penalty": 1.1},
    ]  # fmt: skip
    sampler.add_row(new_row(0, plain))
    for row, option in enumerate(options, start=1):
        sampler.add_row(new_row(row, SamplingParams(**option)))
    edits = sampler._edits
    assert not edits.concern(np.array([0], np.int32))
    for row in range(1, len(options) + 1):
        assert edits.concern(np.array([0, row], np.int32))
        sampler.remove_row(row)
        assert not edits.concern(np.array([0, row], np.int32))
