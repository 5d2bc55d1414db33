"""The standard sampler on an NVIDIA GPU: the same tokens, and no wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nanofw.contracts.requests import SamplingParams
from nanofw.samplers.standard import StandardSampler, standard_sampler
from tests.runtime.test_gpu import no_waiting
from tests.samplers.plain import new_row, sample, sampler_for
from tests.samplers.test_mixes import Requests, check_against_the_plain_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
KINDS = pytest.mark.parametrize("kind", [StandardSampler, standard_sampler])
EVERYTHING = SamplingParams(
    min_p=0.1, top_k=5, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.1,
    repetition_penalty=1.2, bad_words=((1,), (2, 3)), logit_bias={5: 1.0}, min_tokens=3,
)  # fmt: skip


@KINDS
def test_equals_the_plain_reference(kind: Any) -> None:
    generator = np.random.default_rng(1)
    requests = Requests(generator, 300, 150, kind=kind, device="cuda")
    check_against_the_plain_reference(requests)


@KINDS
def test_no_parameter_waits_for_the_device(kind: Any) -> None:
    sampler = sampler_for(1000, 8, (7,), kind=kind, device="cuda")
    rows = np.arange(6, dtype=np.int32)
    logits = torch.randn(20, 6, 1000, device="cuda")

    def steps(start: int) -> None:
        for row in rows.tolist():
            sampler.add_row(new_row(row, EVERYTHING, seed=row, prompt=[1, 2], output=[3] * start))
        for step in range(start, start + 5):
            positions = np.full(6, 2 + step, np.int32)
            sample(sampler, logits[step].clone(), rows, positions)
        for row in rows.tolist():
            sampler.remove_row(row)

    steps(0)  # compiles and allocates
    with no_waiting():
        steps(5)
