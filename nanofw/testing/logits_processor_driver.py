"""Drives a logits processor as an executor would, over made-up logits and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.testing.rows import PROMPT, VOCAB_SIZE, new_row, sampler_config

OUTPUTS = (9, 4, 9, 30, 9, 4)
"""Tokens that the first request samples; the others sample other ones."""


class LogitsProcessorDriver:
    """Requests by number: each has an argument, a seed, an id and logits of its own.

    Args:
        make: a fresh processor.
        device: where it runs.
        name: under which requests bring arguments.
        arguments: one for each request.
    """

    def __init__(
        self,
        make: Callable[[SamplerConfig], LogitsProcessor],
        device: str,
        name: str,
        arguments: Sequence[object],
    ) -> None:
        self._make, self._device, self._name = make, device, name
        self.arguments = arguments

    def processor(self) -> LogitsProcessor:
        """A fresh processor for a small vocabulary."""
        return self._make(sampler_config(self._device, self._name))

    def row(self, number: int, row: int, num_outputs: int = 0) -> NewRow:
        """A request in a row, with the tokens that it has sampled."""
        argument = self.arguments[number]
        return new_row(
            row,
            SamplingParams(),
            request_id=f"request-{number}",
            output=[sampled_token(number, i) for i in range(num_outputs)],
            seed=1000 + number,
            arguments=None if argument is None else {self._name: argument},
        )

    def add(self, processor: LogitsProcessor, number: int, row: int, num_outputs: int = 0) -> bool:
        """Whether the processor has something to do for a request that enters a row."""
        has_work: object = processor.add_row(self.row(number, row, num_outputs))
        assert isinstance(has_work, (bool, np.bool_)), (
            f"add_row() returned {has_work!r} for {self.arguments[number]!r}, not True or False"
        )
        return bool(has_work)

    def apply(
        self,
        processor: LogitsProcessor,
        rows: dict[int, int],
        num_outputs: int,
        *,
        spoiled: Sequence[int] = (),
    ) -> np.ndarray:
        """float32[s, vocab] of requests, by row, that have sampled this number of tokens.

        Args:
            spoiled: requests whose logits are NaN.
        """
        import torch

        logits = np.stack([made_up_logits(number, num_outputs) for number in rows.values()])
        logits[[number in spoiled for number in rows.values()]] = np.nan
        given = torch.tensor(logits, device=self._device)
        shape, dtype = given.shape, given.dtype
        positions = np.full(len(rows), len(PROMPT) + num_outputs, np.int32)
        found: object = processor.apply(given, np.array(list(rows), np.int32), positions)
        assert isinstance(found, torch.Tensor), (
            f"apply() returned {type(found).__name__}, not a tensor"
        )
        assert (found.shape, found.dtype) == (shape, dtype), (
            f"apply() returned {found.dtype}{list(found.shape)}, was given {dtype}{list(shape)}"
        )
        assert found.device == given.device, (
            f"apply() returned logits on {found.device}, was given some on {given.device}"
        )
        return found.cpu().numpy().copy()

    def hear(self, processor: LogitsProcessor, rows: dict[int, int], num_outputs: int) -> None:
        """Tell what the requests, by row, sampled after this number of tokens."""
        import torch

        tokens = [sampled_token(number, num_outputs) for number in rows.values()]
        sampled = torch.tensor(tokens, dtype=torch.int32)
        processor.sampled(np.array(list(rows), np.int32), sampled.to(self._device))

    def step(
        self, processor: LogitsProcessor, rows: dict[int, int], num_outputs: int
    ) -> np.ndarray:
        """`apply`, then what was sampled."""
        found = self.apply(processor, rows, num_outputs)
        self.hear(processor, rows, num_outputs)
        return found

    def run(
        self,
        processor: LogitsProcessor,
        numbers: Sequence[int],
        *,
        first_row: int = 0,
        between: Callable[[], object] | None = None,
    ) -> np.ndarray:
        """float32[requests, steps, vocab] of a whole life, after which the requests end.

        Args:
            between: called after each step.
        """
        rows = {first_row + line: number for line, number in enumerate(numbers)}
        for row, number in rows.items():
            self.add(processor, number, row)
        steps: list[np.ndarray] = []
        for num_outputs in range(len(OUTPUTS)):
            steps.append(self.step(processor, rows, num_outputs))
            if between is not None:
                between()
        self.end(processor, rows)
        return np.stack(steps, axis=1)

    def end(self, processor: LogitsProcessor, rows: dict[int, int]) -> None:
        """Requests leave their rows and end."""
        for row, number in rows.items():
            processor.remove_row(row)
            processor.finish(f"request-{number}")


def sampled_token(number: int, num_outputs: int) -> int:
    """What a request samples after this number of tokens."""
    return (OUTPUTS[num_outputs] + 5 * number) % VOCAB_SIZE


def made_up_logits(number: int, num_outputs: int) -> np.ndarray:
    """float32[vocab] of a request that has sampled this number of tokens."""
    generator = np.random.default_rng([number, num_outputs])
    return (2 * generator.normal(size=VOCAB_SIZE)).astype(np.float32)


def difference(found: np.ndarray, expected: np.ndarray) -> str:
    """Where logits differ first, and how; empty where they are equal."""
    places = np.argwhere((found != expected) & ~(np.isnan(found) & np.isnan(expected)))
    if not len(places):
        return ""
    first = tuple(int(index) for index in places[0])
    return (
        f"{len(places)} logits differ, the first at {first}: {found[first]} instead of "
        f"{expected[first]}"
    )
