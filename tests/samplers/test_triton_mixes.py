"""The sampler of NVIDIA GPUs against the plain reference: all parameters, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from nanofw.contracts.requests import SamplingParams
from nanofw.samplers.standard_cuda import CudaSampler
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import device
from tests.samplers.plain import new_row, sampler_for
from tests.samplers.test_mixes import Requests, check_against_the_plain_reference

# The interpreter's numpy warns where a GPU is silent.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
COUNT = 500 if device().type == "cuda" else 6  # the interpreter is slow


def make_requests(seed: int, count: int, vocab: int) -> Requests:
    generator = np.random.default_rng(seed)
    return Requests(generator, count, vocab, kind=CudaSampler, device=device().type)


@pytest.mark.parametrize("vocab", [9, 40])
def test_equals_the_plain_reference(vocab: int) -> None:
    check_against_the_plain_reference(make_requests(vocab, COUNT, vocab))


@slow_in_interpreter
def test_neither_order_nor_company_nor_a_preemption_matters() -> None:
    requests = make_requests(0, 12, 30)
    outputs = requests.run(list(range(12)))
    assert requests.run(list(reversed(range(12))), leave=2) == outputs
    assert requests.run([5])[5] == outputs[5]


def test_rows_whose_logits_are_edited_have_no_variant() -> None:
    """They cannot be drawn for in a graph, which knows nothing of edits."""
    sampler = sampler_for(30, kind=CudaSampler, device=device().type)
    sampler.add_row(new_row(0, SamplingParams(temperature=0)))
    sampler.add_row(new_row(1, SamplingParams(min_p=0.1)))
    sampler.add_row(new_row(2, SamplingParams(presence_penalty=0.1)))
    assert sampler.variant(np.array([0], np.int32)) == "whole"
    assert sampler.variant(np.array([0, 1], np.int32)) == "cut"
    assert sampler.variant(np.array([0, 2], np.int32)) is None
