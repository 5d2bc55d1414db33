"""Requests that a sampler draws for, as an executor would call it, over made-up logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import SkipTest

import numpy as np

from nanofw.contracts.arrays import FloatArray, IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SampledTokens, Sampler, SamplerConfig
from nanofw.testing.sampler_reference import EOS_TOKEN, NUM_DRAWS

if TYPE_CHECKING:
    import torch

VOCAB = 64
NUM_ROWS = 16
STEPS = 4
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


@dataclass(frozen=True)
class Draws:
    """A request that tokens are drawn for: its parameters, seed and prompt."""

    sampling: SamplingParams
    seed: int
    sample_index: int = 0
    prompt: tuple[int, ...] = (11, 12, 13)
    output: list[int] = field(default_factory=list[int])

    def row(self, row: int) -> NewRow:
        """The request with what it drew so far, in a row."""
        tokens = np.array([*self.prompt, *self.output], np.int32)
        blocks: IntArray = np.zeros(1, np.int32)
        return NewRow(
            row=row,
            request_id=f"seed-{self.seed}-{self.sample_index}",
            token_ids=tokens,
            num_prompt_tokens=len(self.prompt),
            block_ids=blocks,
            sampling=self.sampling,
            seed=self.seed,
            sample_index=self.sample_index,
        )

    @property
    def position(self) -> int:
        """Of the next token."""
        return len(self.prompt) + len(self.output)


class SamplerDriver:
    """Makes samplers of a small vocabulary and draws with them.

    Args:
        make: a fresh sampler.
        device: where it runs.
    """

    def __init__(self, make: Callable[[SamplerConfig], Sampler], device: str) -> None:
        self._make, self._device = make, device

    def sampler(self) -> Sampler:
        """A fresh sampler of a small vocabulary."""
        import torch

        return self._make(
            SamplerConfig(
                vocab_size=VOCAB,
                max_num_seqs=NUM_ROWS,
                max_model_len=256,
                device=torch.device(self._device),
                eos_token_ids=(EOS_TOKEN,),
            )
        )

    def supports(self, sampling: SamplingParams) -> bool:
        """Whether `check` lets the parameters pass."""
        try:
            self.sampler().check(sampling, VOCAB)
        except ValueError:
            return False
        return True

    def supported(self) -> list[SamplingParams]:
        """The parameters that are tried."""
        found = [sampling for sampling in PARAMETERS if self.supports(sampling)]
        assert found, "check refuses every parameter"
        return found

    def drawing(self) -> SamplingParams:
        """Supported parameters that draw."""
        found = [sampling for sampling in self.supported() if sampling.temperature > 0]
        if not found:
            raise SkipTest("it draws nothing at random")
        return found[0]

    def requests(self) -> list[Draws]:
        """One for each of the supported parameters."""
        return [Draws(sampling, 100 + i) for i, sampling in enumerate(self.supported())]

    def drawn(
        self, order: Iterable[int], *, first_row: int = 0, leave_before: int | None = None
    ) -> dict[int, list[int]]:
        """Tokens of some of the requests after a few steps, by number.

        Args:
            order: their lines in the batch.
            leave_before: the step before which all of them lose their rows and return.
        """
        lines, sampler, requests = list(order), self.sampler(), self.requests()
        rows = {request: first_row + request for request in lines}
        for request, row in rows.items():
            sampler.add(requests[request].row(row))
        for step in range(STEPS):
            if step == leave_before:
                for row in rows.values():
                    sampler.remove(row)
                rows = {request: NUM_ROWS - 1 - request for request in lines}
                for request, row in rows.items():
                    sampler.add(requests[request].row(row))
            self.steps(sampler, {rows[r]: requests[r] for r in lines}, 1, lines)
        return {request: requests[request].output for request in lines}

    def steps(
        self,
        sampler: Sampler,
        by_row: dict[int, Draws],
        count: int,
        numbers: Sequence[int],
    ) -> None:
        """Draw `count` tokens for requests that are in their rows; `numbers` choose the logits."""
        import torch

        for _ in range(count):
            draws = list(by_row.values())
            lines = [made_up_logits(n, len(d.output)) for n, d in zip(numbers, draws, strict=True)]
            rows: IntArray = np.array(list(by_row), np.int32)
            positions: IntArray = np.array([draw.position for draw in draws], np.int32)
            logits = torch.from_numpy(np.stack(lines)).to(self._device)
            result = sampler.sample(logits, rows, positions)
            for draw, token in zip(draws, result.token_ids.tolist(), strict=True):
                draw.output.append(token)

    def sampled(self, requests: Sequence[Draws], logits: np.ndarray) -> SampledTokens:
        """One draw for each of the requests, in rows of a fresh sampler."""
        import torch

        sampler = self.sampler()
        for row, request in enumerate(requests):
            sampler.add(request.row(row))
        rows: IntArray = np.arange(len(requests), dtype=np.int32)
        positions: IntArray = np.array([request.position for request in requests], np.int32)
        lines: torch.Tensor = torch.from_numpy(logits.copy()).to(self._device)
        return sampler.sample(lines, rows, positions)

    def shares(
        self,
        sampling: SamplingParams,
        logits: FloatArray,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        *,
        num_draws: int = NUM_DRAWS,
    ) -> FloatArray:
        """float64[v], how often each of the v tokens with logits was drawn; the others are out.

        Draws differ in their seeds; NUM_ROWS of them make a step.
        """
        line = np.full(VOCAB, -np.inf)
        line[: len(logits)] = logits
        sampler, rows = self.sampler(), np.arange(NUM_ROWS, dtype=np.int32)
        counts = np.zeros(VOCAB, np.int64)
        for first in range(0, num_draws, NUM_ROWS):
            draws = [Draws(sampling, first + row, 0, prompt, list(output)) for row in rows.tolist()]
            counts += np.bincount(self._draw(sampler, draws, line, rows), minlength=VOCAB)
        assert not counts[len(logits) :].any(), f"{sampling} drew a token of logit -inf"
        return counts[: len(logits)] / counts.sum()

    def _draw(
        self, sampler: Sampler, draws: Sequence[Draws], line: FloatArray, rows: IntArray
    ) -> IntArray:
        import torch

        for row, draw in zip(rows.tolist(), draws, strict=True):
            sampler.add(draw.row(row))
        positions: IntArray = np.array([draw.position for draw in draws], np.int32)
        lines = torch.from_numpy(np.tile(line, (len(rows), 1)).astype(np.float32)).to(self._device)
        result = sampler.sample(lines, rows, positions)
        for row in rows.tolist():
            sampler.remove(row)
        return result.token_ids.cpu().numpy()

    def flat(self, requests: Sequence[Draws]) -> list[int]:
        """Tokens drawn from equal logits."""
        logits = np.zeros((len(requests), VOCAB), np.float32)
        return self.sampled(requests, logits).token_ids.tolist()


def made_up_logits(request: int, step: int) -> np.ndarray:
    """float32[vocab], made up for a request's draw; the same tokens stay likely."""
    always = np.random.default_rng(request).normal(size=VOCAB)
    now = np.random.default_rng([request, step]).normal(size=VOCAB)
    return (2 * always + 0.3 * now).astype(np.float32)
