"""What every logits processor on the device must keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from nanofw.contracts.logits_processor import HearsSampledTokens, LogitsProcessor
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.testing.rows import VOCAB_SIZE, new_row, sampler_config

OUTPUTS = (9, 4, 9, 30)
"""Tokens of each request in the checks of processors that hear which token was sampled."""


class LogitsProcessorChecks(ABC):
    """Checks of one processor; each `test_` method is one. Subclass it under pytest.

        class TestMyProcessor(LogitsProcessorChecks):
            name = "my_processor"
            arguments = (None, {"strength": 2.0})
            wrong_arguments = ({"strength": -1},)

            def make(self, config):
                return MyProcessor(MyOptions(), config)

    Attributes:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
        device: where to run.
    """

    name: str
    arguments: ClassVar[Sequence[Any]] = (None,)
    wrong_arguments: ClassVar[Sequence[Any]] = ()
    device: str = "cpu"

    @abstractmethod
    def make(self, config: SamplerConfig) -> LogitsProcessor:
        """A fresh processor."""

    def test_arguments_are_checked(self) -> None:
        """Wrong ones are refused with a ValueError that says something, right ones pass."""
        processor = self.processor()
        for right in self.arguments:
            processor.check(right)
        for wrong in self.wrong_arguments:
            assert self.reason(processor, wrong), f"check lets {wrong!r} pass, or says no reason"

    def test_a_row_depends_on_its_request_alone(self) -> None:
        """Alone, beside others, in any order and row."""
        numbers = list(range(len(self.arguments)))
        together = self.changed(numbers)
        backwards = self.changed(numbers[::-1], first_row=6)[::-1]
        assert np.array_equal(together, backwards), "order or row of the requests matter"
        for number in numbers:
            alone = self.changed([number])[0]
            argument = self.arguments[number]
            assert np.array_equal(alone, together[number]), f"alone it differs: {argument!r}"

    def test_a_request_that_it_leaves_alone_keeps_its_logits(self) -> None:
        """Of those for which `add` says that there is nothing to do, beside those with work."""
        processor = self.processor()
        works = [processor.add(self.row(i, a)) for i, a in enumerate(self.arguments)]
        logits = _logits(len(works))
        found = self.apply(processor, logits, range(len(works)))
        for row, has_work in enumerate(works):
            if not has_work:
                same = np.array_equal(found[row], logits[row])
                assert same, f"add() said nothing to do for {self.arguments[row]!r}"

    def test_a_row_knows_nothing_of_the_request_before(self) -> None:
        """Each request after each other one in the same row."""
        for first in self.arguments:
            for second in self.arguments:
                used, fresh = self.processor(), self.processor()
                used.add(self.row(0, first))
                self.apply(used, _logits(1), [0])
                self.hear(used, [0], [OUTPUTS[0]])
                used.remove(0)
                used.add(self.row(0, second))
                fresh.add(self.row(0, second))
                found = self.apply(used, _logits(1), [0])
                expected = self.apply(fresh, _logits(1), [0])
                assert np.array_equal(found, expected), f"{second!r} in a row that had {first!r}"

    def test_shape_and_type(self) -> None:
        """float32[s, vocab] again, on the same device, without NaN."""
        found = self.changed(list(range(len(self.arguments))))
        assert found.shape == (len(self.arguments), VOCAB_SIZE)
        assert found.dtype == np.float32
        assert not np.isnan(found).any()

    def test_a_request_that_returns_goes_on(self) -> None:
        """After a preemption its tokens come with `add`, and nothing is missing or doubled."""
        for argument in self.arguments:
            whole = self.processor()
            whole.add(self.row(0, argument))
            for count in range(len(OUTPUTS) + 1):
                returned = self.processor()
                returned.add(self.row(3, argument, OUTPUTS[:count]))
                found = self.apply(returned, _logits(1), [3])
                expected = self.apply(whole, _logits(1), [0])
                assert np.array_equal(found, expected), (
                    f"{argument!r}: other logits after {count} tokens and a preemption"
                )
                if count < len(OUTPUTS):
                    self.hear(whole, [0], [OUTPUTS[count]])

    # -- tools ------------------------------------------------------------------------------

    def reason(self, processor: LogitsProcessor, arguments: Any) -> str:
        """Why `check` refuses the arguments; empty: it does not."""
        try:
            processor.check(arguments)
        except ValueError as error:
            return str(error)
        return ""

    def processor(self) -> LogitsProcessor:
        """A fresh processor for a small vocabulary."""
        return self.make(sampler_config(self.device))

    def row(self, row: int, argument: Any, output: Sequence[int] = ()) -> NewRow:
        """A request with an argument, in a row."""
        arguments = None if argument is None else {self.name: argument}
        return new_row(row, SamplingParams(), output=output, seed=row, arguments=arguments)

    def changed(self, numbers: Sequence[int], *, first_row: int = 0) -> np.ndarray:
        """float32[s, vocab], what becomes of the logits of requests with these arguments."""
        processor = self.processor()
        rows = [first_row + number for number in numbers]
        for number, row in zip(numbers, rows, strict=True):
            processor.add(self.row(row, self.arguments[number]))
        return self.apply(processor, _logits(len(self.arguments))[numbers], rows)

    def apply(self, processor: LogitsProcessor, logits: np.ndarray, rows: Any) -> np.ndarray:
        """float32[s, vocab] after the processor."""
        import torch

        on_device = torch.from_numpy(logits.copy()).to(self.device)
        return processor.apply(on_device, np.array(list(rows), np.int32)).cpu().numpy()

    def hear(self, processor: LogitsProcessor, rows: list[int], token_ids: list[int]) -> None:
        """Tell which tokens were sampled, if the processor wants to hear of it."""
        import torch

        if isinstance(processor, HearsSampledTokens):
            sampled = torch.tensor(token_ids, dtype=torch.int32, device=self.device)
            processor.on_sampled(np.array(rows, np.int32), sampled)


def _logits(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, VOCAB_SIZE)).astype(np.float32)
