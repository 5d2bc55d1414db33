"""Drives a sampler as an executor would, over made-up logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import SkipTest

import numpy as np

from nanofw.contracts.arrays import FloatArray, IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SampledTokens, Sampler, SamplerConfig
from nanofw.testing.rows import NUM_ROWS, PROMPT, VOCAB_SIZE, new_row, sampler_config
from nanofw.testing.sampler_reference import NUM_SAMPLES

NUM_STEPS = 4
MOST_ROWS = 250
"""Of a step whose samples are counted: a wide step costs little more than a narrow one."""
PARAMETERS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.6, top_k=9),
    SamplingParams(temperature=1.4, top_p=0.8),
    SamplingParams(min_p=0.05),
    SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
    SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=1.0),
    SamplingParams(logit_bias={3: 2.0, 4: -100.0}, bad_words=((7,), (1, 2))),
    SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(9,)),
)
"""Tried where `check` does not refuse them."""

_numbers = count()


@dataclass(frozen=True)
class SampledRequest:
    """A request and the tokens that were sampled for it. No two have the same id."""

    sampling: SamplingParams
    seed: int
    sample_index: int = 0
    prompt: tuple[int, ...] = PROMPT
    output: list[int] = field(default_factory=list[int])
    argument: Any = None
    id: str = field(default_factory=lambda: f"request-{next(_numbers)}")

    @property
    def position(self) -> int:
        """Of the next token."""
        return len(self.prompt) + len(self.output)


class SamplerDriver:
    """Makes samplers of a small vocabulary and samples with them.

    Args:
        make: a fresh sampler.
        device: where it runs.
        name: under which requests bring arguments.
        arguments: what they may bring; the first goes with every parameter.
    """

    def __init__(
        self,
        make: Callable[[SamplerConfig], Sampler],
        device: str,
        name: str,
        arguments: Sequence[object],
    ) -> None:
        self._make, self._device, self._name = make, device, name
        self._arguments = arguments

    def sampler(self) -> Sampler:
        """A fresh sampler of a small vocabulary."""
        return self._make(sampler_config(self._device, self._name, MOST_ROWS))

    def supports(self, sampling: SamplingParams) -> bool:
        """Whether `check` lets the parameters pass."""
        try:
            self.sampler().check(sampling, self._arguments[0])
        except ValueError:
            return False
        return True

    def supported(self) -> list[SamplingParams]:
        """The parameters that are tried."""
        found = [sampling for sampling in PARAMETERS if self.supports(sampling)]
        assert found, f"check refuses every parameter, of {len(PARAMETERS)} tried"
        return found

    def random_sampling(self) -> SamplingParams:
        """Supported parameters under which tokens are random."""
        found = [sampling for sampling in self.supported() if sampling.temperature > 0]
        if not found:
            raise SkipTest("it samples nothing at random")
        return found[0]

    def request(self, sampling: SamplingParams, seed: int, **fields: Any) -> SampledRequest:
        """A request with the first argument."""
        return SampledRequest(sampling, seed, argument=self._arguments[0], **fields)

    def requests(self) -> list[SampledRequest]:
        """One for each of the supported parameters, and one for each further argument."""
        supported = self.supported()
        cases = [(sampling, self._arguments[0]) for sampling in supported]
        cases += [(supported[-1], argument) for argument in self._arguments[1:]]
        return [
            SampledRequest(sampling, 100 + i, argument=argument)
            for i, (sampling, argument) in enumerate(cases)
        ]

    def row(self, request: SampledRequest, row: int) -> NewRow:
        """The request with its tokens so far, in a row."""
        return new_row(
            row,
            request.sampling,
            request_id=request.id,
            prompt=request.prompt,
            output=request.output,
            seed=request.seed,
            sample_index=request.sample_index,
            arguments=None if request.argument is None else {self._name: request.argument},
        )

    def sample_steps(
        self, order: Iterable[int], *, first_row: int = 0, preempt_before: int | None = None
    ) -> dict[int, list[int]]:
        """Tokens of some of the requests after a few steps, by number.

        Args:
            order: their rows in the batch.
            preempt_before: the step before which all of them lose their rows and return.
        """
        numbers, sampler, requests = list(order), self.sampler(), self.requests()
        rows = {number: first_row + number for number in numbers}
        for number, row in rows.items():
            sampler.add_row(self.row(requests[number], row))
        for step in range(NUM_STEPS):
            if step == preempt_before:
                for row in rows.values():
                    sampler.remove_row(row)
                rows = {number: NUM_ROWS - 1 - number for number in numbers}
                for number, row in rows.items():
                    sampler.add_row(self.row(requests[number], row))
            self.continue_rows(sampler, {rows[n]: requests[n] for n in numbers}, 1, numbers)
        return {number: requests[number].output for number in numbers}

    def continue_rows(
        self,
        sampler: Sampler,
        by_row: dict[int, SampledRequest],
        count: int,
        numbers: Sequence[int],
    ) -> None:
        """Sample `count` tokens for requests in their rows; `numbers` choose the logits."""
        for _ in range(count):
            requests = list(by_row.values())
            logits = [
                made_up_logits(number, len(request.output))
                for number, request in zip(numbers, requests, strict=True)
            ]
            rows: IntArray = np.array(list(by_row), np.int32)
            result = self._sample(sampler, np.stack(logits), rows, requests)
            for request, token in zip(requests, ids_of(result), strict=True):
                request.output.append(token)

    def sample(
        self, requests: Sequence[SampledRequest], logits: np.ndarray, *, scaled: bool = False
    ) -> SampledTokens:
        """One token for each of the requests, in rows of a fresh sampler.

        Args:
            scaled: the temperatures are applied first, as for processors that come after them.
        """
        sampler = self.sampler()
        for row, request in enumerate(requests):
            sampler.add_row(self.row(request, row))
        rows: IntArray = np.arange(len(requests), dtype=np.int32)
        return self._sample(sampler, logits, rows, requests, scaled=scaled)

    def shares(
        self,
        sampling: SamplingParams,
        logits: FloatArray,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        *,
        num_samples: int = NUM_SAMPLES,
    ) -> FloatArray:
        """float64[v], how often each of the v tokens with logits was sampled; the others are out.

        Samples differ in their seeds; up to MOST_ROWS of them make a step.
        """
        num_rows = min(num_samples, MOST_ROWS)
        row_logits = np.full(VOCAB_SIZE, -np.inf, np.float32)
        row_logits[: len(logits)] = logits
        sampler, counts = self.sampler(), np.zeros(VOCAB_SIZE, np.int64)
        for first in range(0, num_samples, num_rows):
            requests = [
                self.request(sampling, seed, prompt=prompt, output=list(output))
                for seed in range(first, min(first + num_rows, num_samples))
            ]
            for row, request in enumerate(requests):
                sampler.add_row(self.row(request, row))
            rows: IntArray = np.arange(len(requests), dtype=np.int32)
            result = self._sample(sampler, np.tile(row_logits, (len(rows), 1)), rows, requests)
            self.end(sampler, dict(enumerate(requests)))
            counts += np.bincount(result.token_ids.cpu().numpy(), minlength=VOCAB_SIZE)
        out = np.flatnonzero(counts[len(logits) :]) + len(logits)
        assert not len(out), f"{sampling} sampled tokens {out.tolist()} of logit -inf"
        return counts[: len(logits)] / counts.sum()

    def end(self, sampler: Sampler, by_row: dict[int, SampledRequest]) -> None:
        """Requests leave their rows and end."""
        for row, request in by_row.items():
            sampler.remove_row(row)
            sampler.finish(request.id)

    def _sample(
        self,
        sampler: Sampler,
        logits: np.ndarray,
        rows: IntArray,
        requests: Sequence[SampledRequest],
        *,
        scaled: bool = False,
    ) -> SampledTokens:
        """One token for each of the requests, which are in these rows."""
        import torch

        positions: IntArray = np.array([request.position for request in requests], np.int32)
        given = torch.tensor(logits, device=self._device)
        changed = sampler.edit(given, rows.copy(), positions.copy())
        _assert_logits("edit", changed, given)
        if scaled:
            changed = sampler.scale(changed, rows.copy())
            _assert_logits("scale", changed, given)
        sampled = sampler.sample(changed, rows.copy(), positions.copy(), scaled=scaled)
        assert isinstance(sampled, SampledTokens), (
            f"sample() returned {type(sampled).__name__}, not SampledTokens"
        )
        for name in ("token_ids", "failed"):
            value = getattr(sampled, name)
            assert isinstance(value, torch.Tensor), (
                f"sample() returned {name} as {type(value).__name__}, not as a tensor"
            )
        return sampled

    def sample_uniformly(self, requests: Sequence[SampledRequest]) -> list[int]:
        """Tokens sampled from equal logits."""
        logits = np.zeros((len(requests), VOCAB_SIZE), np.float32)
        return ids_of(self.sample(requests, logits))


def ids_of(sampled: SampledTokens) -> list[int]:
    """The sampled tokens, on the host."""
    return sampled.token_ids.cpu().numpy().tolist()


def _assert_logits(method: str, found: Any, given: Any) -> None:
    import torch

    assert isinstance(found, torch.Tensor), (
        f"{method}() returned {type(found).__name__}, not a tensor"
    )
    assert (found.shape, found.dtype) == (given.shape, given.dtype), (
        f"{method}() returned {found.dtype}{list(found.shape)}, was given "
        f"{given.dtype}{list(given.shape)}"
    )


def made_up_logits(request: int, step: int) -> np.ndarray:
    """float32[vocab], made up for a step of a request; the same tokens stay likely."""
    always = np.random.default_rng(request).normal(size=VOCAB_SIZE)
    now = np.random.default_rng([request, step]).normal(size=VOCAB_SIZE)
    return (2 * always + 0.3 * now).astype(np.float32)
