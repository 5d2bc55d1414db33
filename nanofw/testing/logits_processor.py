"""What every logits processor on the device must keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.sampler import SamplerConfig
from nanofw.testing.argument_checks import check_arguments
from nanofw.testing.logits_processor_driver import (
    OUTPUTS,
    LogitsProcessorDriver,
    difference,
    made_up_logits,
)
from nanofw.testing.memory import reachable_bytes

NUM_REQUESTS = 3
"""At least: what is done to another request, or in another's row, shows beside others alone."""


class LogitsProcessorChecks(ABC):
    """Checks of one processor; each `test_` method is one. Subclass it under pytest.

        class TestMyProcessor(LogitsProcessorChecks):
            name = "my_processor"
            arguments = (None, {"strength": 2.0})
            wrong_arguments = ({"strength": -1},)

            def make(self, config):
                return MyProcessor(MyOptions(), config)

    Each argument is that of a request, or of several where there are few, and each request has a
    seed and an id of its own. It keeps them in whatever row it is, so that a processor may take
    random numbers from the seed and keep state by id.

    Attributes:
        name: under which requests bring arguments.
        capabilities: what the manifest claims.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
        device: where to run.
        kept_bytes_per_request: how much the processor may remember of each finished request.
    """

    name: str
    capabilities: ClassVar[Mapping[str, object]] = {}
    arguments: ClassVar[Sequence[object]] = (None,)
    wrong_arguments: ClassVar[Sequence[object]] = ()
    device: str = "cpu"
    kept_bytes_per_request: ClassVar[int] = 16

    @abstractmethod
    def make(self, config: SamplerConfig) -> LogitsProcessor:
        """A fresh processor."""

    @property
    def driver(self) -> LogitsProcessorDriver:
        """Calls fresh processors."""
        return self._driver([self.argument(number) for number in self.numbers])

    @property
    def numbers(self) -> list[int]:
        """Of the requests, one for each argument, and three at least."""
        return list(range(max(NUM_REQUESTS, len(self.arguments))))

    def argument(self, number: int) -> object:
        """What a request brings."""
        return self.arguments[number % len(self.arguments)]

    def _driver(self, arguments: Sequence[object]) -> LogitsProcessorDriver:
        return LogitsProcessorDriver(self.make, self.device, self.name, arguments)

    def test_it_keeps_the_form_of_the_contract(self) -> None:
        """It derives from `LogitsProcessor`, and its methods are those of the contract."""
        processor = self.driver.processor()
        what = type(processor).__name__
        assert isinstance(processor, LogitsProcessor), f"{what} must derive from LogitsProcessor"
        problems = hook_problems(type(processor), LogitsProcessor)
        assert not problems, "; ".join(problems)
        assert processor.stage in ("logits", "scaled"), f"stage is {processor.stage!r}"
        size = processor.deferred_bytes
        assert isinstance(size, int), f"deferred_bytes is {size!r}, not an integer"
        assert size >= 0, f"deferred_bytes is {size}"
        hears = type(processor).sampled is not LogitsProcessor.sampled
        claimed = self.capabilities.get("needs_history", "none")
        assert not (self.capabilities and hears) or claimed == "device", (
            f"{what} writes sampled(), and is never told of a token while it claims "
            f"needs_history: {claimed}, not device"
        )

    def test_arguments_are_checked(self) -> None:
        """Wrong ones are refused with a ValueError that says something, right ones pass."""
        processor = self.driver.processor()
        check_arguments(processor.check, self.arguments, self.wrong_arguments)

    def test_arguments_change_something(self) -> None:
        """At least one of them, in a few steps: else the processor may not see them at all."""
        given = [argument for argument in self.arguments if argument is not None]
        if not given:
            raise SkipTest("no request brings arguments")
        found = self.driver.run(self.driver.processor(), self.numbers)
        without = self._driver([None] * len(self.numbers))
        plain = without.run(without.processor(), self.numbers)
        assert not np.array_equal(found, plain), (
            f"none of {given} under the name {self.name!r} changes any logit in {len(OUTPUTS)} "
            "steps; does the processor read its arguments under another name?"
        )

    def test_a_row_depends_on_its_request_alone(self) -> None:
        """Alone, beside others, in any order and row."""
        driver, numbers = self.driver, self.numbers
        together = driver.run(driver.processor(), numbers)
        backwards = driver.run(driver.processor(), numbers[::-1], first_row=1)[::-1]
        problem = difference(backwards, together)
        assert not problem, f"order or row of the requests matter: {problem}"
        for number in numbers:
            alone = driver.run(driver.processor(), [number])[0]
            problem = difference(alone, together[number])
            assert not problem, f"{self.argument(number)!r} alone: {problem}"

    def test_two_processors_share_nothing(self) -> None:
        """One is used in the middle of the other's requests."""
        driver, numbers = self.driver, self.numbers
        expected = driver.run(driver.processor(), numbers)
        found = driver.run(
            driver.processor(),
            numbers,
            between=lambda: driver.run(driver.processor(), numbers[::-1], first_row=1),
        )
        problem = difference(found, expected)
        assert not problem, f"another processor of this process matters: {problem}"

    def test_a_request_that_it_leaves_alone_keeps_its_logits(self) -> None:
        """Of those for which `add_row` says that there is nothing to do, beside others."""
        driver, processor = self.driver, self.driver.processor()
        works = [driver.add(processor, number, number) for number in self.numbers]
        found = driver.apply(processor, {number: number for number in self.numbers}, 0)
        for number, has_work in enumerate(works):
            problem = difference(found[number], made_up_logits(number, 0))
            assert has_work or not problem, (
                f"add_row() said that there is nothing to do for {self.argument(number)!r}: "
                f"{problem}"
            )

    def test_a_row_knows_nothing_of_the_request_before(self) -> None:
        """Each request after each other one in the same row; also the same one once more."""
        driver = self.driver
        expected = [driver.run(driver.processor(), [number])[0] for number in self.numbers]
        for first in self.numbers:
            for second in self.numbers:
                used = driver.processor()
                driver.run(used, [first])
                problem = difference(driver.run(used, [second])[0], expected[second])
                assert not problem, (
                    f"{self.argument(second)!r} in a row that had {self.argument(first)!r}, "
                    f"which had ended: {problem}"
                )

    def test_a_request_that_returns_goes_on(self) -> None:
        """After a preemption: same id, same tokens, another row; nothing is missing or doubled.

        Meanwhile another request has its row.
        """
        driver = self.driver
        for number in self.numbers:
            expected = driver.run(driver.processor(), [number])[0]
            other = (number + 1) % len(self.numbers)
            for count in range(len(OUTPUTS)):
                processor = driver.processor()
                driver.add(processor, number, 0)
                found = [driver.step(processor, {0: number}, i)[0] for i in range(count)]
                processor.remove_row(0)
                if other != number:
                    driver.run(processor, [other])
                driver.add(processor, number, 3, count)
                found += [
                    driver.step(processor, {3: number}, i)[0] for i in range(count, len(OUTPUTS))
                ]
                problem = difference(np.stack(found), expected)
                assert not problem, (
                    f"{self.argument(number)!r} after {count} tokens and a preemption: {problem}"
                )

    def test_finished_requests_are_forgotten(self) -> None:
        """What a processor keeps does not grow with the number of requests that it has seen."""
        sizes, rounds = list[int](), 9
        driver = self._driver([self.argument(i) for i in range(8 * rounds)])
        processor = driver.processor()
        for round_ in range(rounds):
            driver.run(processor, range(8 * round_, 8 * round_ + 8))
            sizes.append(reachable_bytes(processor))
        num_requests, grown = 8 * (rounds - 3), sizes[-1] - sizes[2]
        assert grown <= num_requests * self.kept_bytes_per_request, (
            f"after {num_requests} more requests the processor keeps {grown} bytes more; finish() "
            "drops what belongs to a request"
        )

    def test_a_failure_stays_one(self) -> None:
        """Of a request without a finite logit, which is to end with an error; others go on."""
        driver, broken = self.driver, 1
        expected = driver.apply(self._with_rows(driver), {n: n for n in self.numbers}, 0)
        found = driver.apply(
            self._with_rows(driver), {n: n for n in self.numbers}, 0, spoiled=(broken,)
        )
        assert not np.isfinite(found[broken]).all(), (
            "all logits of a request were NaN, and all are finite after apply(): a model that "
            "broke would go unnoticed"
        )
        for number in self.numbers:
            problem = difference(found[number], expected[number])
            assert number == broken or not problem, f"beside a request that fails: {problem}"

    def _with_rows(self, driver: LogitsProcessorDriver) -> LogitsProcessor:
        """A fresh processor that has each request in the row of its number."""
        processor = driver.processor()
        for number in self.numbers:
            driver.add(processor, number, number)
        return processor

    def test_no_logit_becomes_nan(self) -> None:
        """In a few steps."""
        found = self.driver.run(self.driver.processor(), self.numbers)
        wrong = np.argwhere(np.isnan(found)).tolist()
        assert not wrong, f"NaN at (request, step, token) {wrong[:5]}"
