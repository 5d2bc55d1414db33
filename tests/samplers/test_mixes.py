"""Random mixes of all parameters: the vectorised path against the plain one, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nanofw.contracts.requests import SamplingParams
from tests.samplers.plain import draw, edited, new_row, sample, sampler_for

EOS = (2, 5)
STEPS = 5


def random_mix(rng: np.random.Generator, vocab: int) -> SamplingParams:
    """Each parameter is set in about half of the mixes."""

    def maybe(name: str, *values: Any) -> None:
        if rng.random() < 0.5:
            chosen[name] = values[int(rng.integers(len(values)))]

    chosen: dict[str, Any] = {}
    tokens = [int(token) for token in rng.integers(0, vocab, 12)]
    maybe("temperature", 0.0, 0.3, 0.8, 1.7)
    maybe("top_k", 1, 3, vocab // 2, vocab + 1, -1)
    maybe("top_p", 0.95, 0.6, 0.1)
    maybe("min_p", 0.02, 0.2, 0.7, 1.0)
    maybe("repetition_penalty", 0.7, 1.2, 3.0)
    maybe("presence_penalty", -0.7, 0.9, 2.0)
    maybe("frequency_penalty", -0.3, 0.5, 2.0)
    maybe("logit_bias", {tokens[0]: 3.0, tokens[1]: -100.0}, {tokens[2]: -1.5})
    maybe("bad_words", (tuple(tokens[3:4]), tuple(tokens[4:6])), tuple((a, b)
          for a in range(vocab) for b in tokens[6:8]), (tuple(tokens[8:11]),))  # fmt: skip
    maybe("min_tokens", 2, 4)
    maybe("stop_token_ids", (tokens[11],))
    maybe("ignore_eos", True)
    return SamplingParams(**chosen)


class Requests:
    """Rows with random parameters that are drawn for step by step.

    `kind` and `device` say which sampler draws, and where.
    """

    def __init__(self, rng: np.random.Generator, count: int, vocab: int, **sampler: Any) -> None:
        self.vocab, self._sampler = vocab, sampler
        self.parameters = [random_mix(rng, vocab) for _ in range(count)]
        self.seeds = [int(seed) for seed in rng.integers(0, 1 << 63, count)]
        self.prompts = [
            [int(t) for t in rng.integers(0, vocab, int(rng.integers(1, 9)))] for _ in range(count)
        ]
        self.logits = (rng.normal(size=(STEPS, count, vocab)) * 2).astype(np.float32)

    def run(self, order: list[int], *, leave: int | None = None) -> list[list[int]]:
        """Tokens by request; before step `leave` every row moves, as after a preemption."""
        sampler = sampler_for(self.vocab, 2 * len(self.seeds), EOS, **self._sampler)
        outputs: list[list[int]] = [[] for _ in self.seeds]
        rows = {request: request for request in order}
        for request in order:
            self._enter(sampler, request, rows[request], [])
        for step in range(STEPS):
            if step == leave:
                for request in order:
                    sampler.remove_row(rows[request])
                    rows[request] = 2 * len(self.seeds) - 1 - request
                    self._enter(sampler, request, rows[request], outputs[request])
            positions = [len(self.prompts[request]) + step for request in order]
            drawn = sample(
                sampler,
                torch.from_numpy(self.logits[step, order]).to(self._sampler.get("device", "cpu")),
                np.array([rows[request] for request in order], np.int32),
                np.array(positions, np.int32),
            )
            assert not drawn.failed.any()
            for request, token in zip(order, drawn.token_ids.tolist(), strict=True):
                outputs[request].append(token)
        return outputs

    def _enter(self, sampler: Any, request: int, row: int, output: list[int]) -> None:
        sampler.add_row(
            new_row(
                row, self.parameters[request], seed=self.seeds[request],
                prompt=self.prompts[request], output=output,
            )
        )  # fmt: skip


def check_against_the_plain_reference(requests: Requests) -> None:
    count = len(requests.seeds)
    outputs = requests.run(list(range(count)))
    ties = 0
    for request, output in enumerate(outputs):
        sampling, prompt = requests.parameters[request], requests.prompts[request]
        for step, token in enumerate(output):
            changed = edited(requests.logits[step, request], sampling, prompt, output[:step], EOS)
            position = len(prompt) + step
            expected, gap = draw(changed, sampling, requests.seeds[request], 0, position)
            ties += gap < 1e-5
            assert gap < 1e-5 or token == expected, (request, step, sampling)
    assert ties <= count * STEPS / 100 + 2


@pytest.mark.parametrize("vocab", [9, 30, 150])
def test_equals_the_plain_reference_on_1000_mixes(vocab: int) -> None:
    check_against_the_plain_reference(Requests(np.random.default_rng(vocab), 340, vocab))


@pytest.mark.parametrize("seed", range(6))
def test_neither_order_nor_company_nor_a_preemption_matters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 24
    requests = Requests(rng, count, 30)
    outputs = requests.run(list(range(count)))
    assert requests.run([int(i) for i in rng.permutation(count)]) == outputs
    assert requests.run(list(range(count)), leave=int(rng.integers(1, STEPS))) == outputs
    for alone in rng.integers(0, count, 5).tolist():
        assert requests.run([alone])[alone] == outputs[alone]
