"""What every logits processor on the host must keep: one that masks tokens, as a grammar does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from nanofw.assembly.model_source import locate
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig
from nanofw.testing.argument_checks import check_arguments
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.host_processor_driver import HostProcessorDriver, MaskedRequest
from nanofw.testing.memory import reachable_bytes

CONFIG = HostProcessorConfig(vocab_size=4096, eos_token_ids=(0,), tokenizer_path=None)
"""Of the model that nanofw carries with it."""
NUM_REQUESTS = 4
"""At least: what another request changes shows beside others alone."""


class HostProcessorChecks(ABC):
    """Checks of one host processor; each `test_` method is one. Subclass it under pytest.

        class TestMyProcessor(HostProcessorChecks):
            name = "my_processor"
            arguments = (None, {"regex": "[a-z]+"})
            wrong_arguments = ({"regex": "["},)

            def make(self, config):
                return MyProcessor(MyOptions(), config)

    Each argument is that of a request, or of several where there are few, which takes a random walk
    through the tokens that its masks allow. The tokenizer is that of the model `embedded:demo`.

    Attributes:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
        num_steps: tokens of a walk.
        kept_bytes_per_request: how much the processor may remember of each finished request.
    """

    name: str
    arguments: ClassVar[Sequence[object]] = (None,)
    wrong_arguments: ClassVar[Sequence[object]] = ()
    num_steps: ClassVar[int] = 8
    kept_bytes_per_request: ClassVar[int] = 16

    @abstractmethod
    def make(self, config: HostProcessorConfig) -> HostProcessor:
        """A fresh processor."""

    @property
    def driver(self) -> HostProcessorDriver:
        """A driver of a fresh processor."""
        folder = str(locate("embedded:demo"))
        config = HostProcessorConfig(
            vocab_size=CONFIG.vocab_size,
            eos_token_ids=CONFIG.eos_token_ids,
            tokenizer_path=folder,
            name=self.name,
        )
        return HostProcessorDriver(self.make(config), config, self.num_steps)

    def requests(self) -> list[MaskedRequest]:
        """One for each argument, and four at least."""
        count = len(self.arguments)
        return [
            MaskedRequest(number, self.arguments[number % count])
            for number in range(max(NUM_REQUESTS, count))
        ]

    def walks(self) -> list[MaskedRequest]:
        """The requests after a walk, each with a processor of its own."""
        found: list[MaskedRequest] = []
        for request in self.requests():
            self.driver.run([request])
            found.append(request)
        return found

    def test_it_keeps_the_form_of_the_contract(self) -> None:
        """It derives from `HostProcessor`, and its methods are those of the contract."""
        processor = self.driver.processor
        what = type(processor).__name__
        assert isinstance(processor, HostProcessor), f"{what} must derive from HostProcessor"
        problems = hook_problems(type(processor), HostProcessor)
        assert not problems, "; ".join(problems)

    def test_arguments_are_checked(self) -> None:
        """Wrong ones are refused with a ValueError that says something, right ones pass."""
        processor = self.driver.processor
        check_arguments(processor.check, self.arguments, self.wrong_arguments)

    def test_something_is_forbidden(self) -> None:
        """One of the requests, in a few steps: else its arguments may not be seen at all."""
        if all(argument is None for argument in self.arguments):
            raise SkipTest("no request brings arguments")
        walks = self.walks()
        assert any(not mask.all() for walk in walks for mask in walk.masks), (
            f"no mask of {list(self.arguments)!r} forbids any token in {self.num_steps} steps"
        )

    def test_masks_only_clear_bits(self) -> None:
        """What others forbade stays forbidden, and what they allowed is masked as ever."""
        for request in self.requests():
            driver = self.driver
            if not driver.start(request):
                continue
            for _ in range(self.num_steps):
                whole = driver.mask(request)
                assert np.array_equal(driver.mask(request), whole), (
                    f"two masks of {request} in a row differ: mask() must change nothing"
                )
                some = driver.random_bits(request)
                found = driver.mask(request, some)
                wrong = np.flatnonzero(found != (whole & some))
                assert not len(wrong), (
                    f"{request}: tokens {wrong[:5].tolist()} are "
                    f"{'allowed' if found[wrong[0]] else 'forbidden'} when others forbid half of "
                    "the vocabulary; mask() clears what may not come next, and nothing else"
                )
                if not driver.step(request):
                    break

    def test_some_token_may_always_come_next(self) -> None:
        """On a walk through allowed tokens no mask is empty, which would fail the request."""
        for walk in self.walks():
            for number, mask in enumerate(walk.masks):
                assert mask.any(), (
                    f"{walk}: no token is allowed after the tokens {walk.tokens[:number]}, all of "
                    "which its masks had allowed"
                )

    def test_masks_depend_on_the_request_alone(self) -> None:
        """Alone and beside others, in any order, once more, and in another processor."""
        alone = self.walks()
        for order in (1, -1):
            beside = self.requests()
            self.driver.run(beside[::order])
            for one, other in zip(alone, beside, strict=True):
                problem = one.difference(other)
                assert not problem, f"beside other requests {problem}"

    def test_rows_of_a_step_are_masked_as_one_by_one(self) -> None:
        """`mask_rows` gives what `mask` gives, and leaves alone whom it is not asked about."""
        driver, requests = self.driver, self.requests()
        live = [request for request in requests if driver.start(request)]
        for _ in range(3):
            expected = [driver.mask(request) for request in live]
            found, problems = driver.mask_rows([None, *live, None])
            assert not problems, f"mask_rows() tells of problems: {problems}"
            for place in (0, -1):
                assert found[place].all(), "mask_rows() changed a line whose request is None"
            for request, one, other in zip(live, expected, found[1:-1], strict=True):
                assert np.array_equal(one, other), f"{request}: mask_rows() and mask() differ"
            live = [request for request in live if driver.step(request)]

    def test_several_tokens_at_once(self) -> None:
        """Tokens that are committed together lead where they lead one by one."""
        for walk in self.walks():
            for count in range(1, len(walk.masks)):
                driver, request = self.driver, MaskedRequest(walk.number, walk.argument)
                if not driver.start(request):
                    break
                driver.advance(request, walk.tokens[:count])
                assert np.array_equal(driver.mask(request), walk.masks[count]), (
                    f"{walk}: after the tokens {walk.tokens[:count]} at once the mask differs from "
                    "that after one by one"
                )

    def test_an_id_may_come_again(self) -> None:
        """A request that ended, at any step, leaves nothing for the next of its id."""
        fresh = self.walks()
        for before in self.requests():
            for expected in fresh:
                driver = self.driver
                first = MaskedRequest(before.number, before.argument, id="again")
                second = MaskedRequest(expected.number, expected.argument, id="again")
                driver.run([first], num_steps=2)
                driver.run([second])
                problem = expected.difference(second)
                assert not problem, f"after {before}, which had the same id and ended, {problem}"

    def test_two_processors_share_nothing(self) -> None:
        """One is used in the middle of the other's requests."""
        driver, other = self.driver, self.driver
        before = class_state(type(driver.processor))
        requests = self.requests()
        driver.run(requests, between=lambda: other.run(self.requests()[::-1]))
        check_class_state(before, type(driver.processor))
        for expected, request in zip(self.walks(), requests, strict=True):
            problem = expected.difference(request)
            assert not problem, f"beside another processor of the process {problem}"

    def test_finished_requests_are_forgotten(self) -> None:
        """What a processor keeps does not grow with the number of requests that it has seen."""
        driver, sizes, rounds = self.driver, list[int](), 8
        for round_ in range(rounds):
            for number in range(8):
                argument = self.arguments[number % len(self.arguments)]
                request = MaskedRequest(number, argument, id=f"{round_}:{number}")
                driver.run([request], num_steps=3)
            sizes.append(reachable_bytes(driver.processor))
        num_requests, grown = 8 * (rounds - 3), sizes[-1] - sizes[2]
        assert grown <= num_requests * self.kept_bytes_per_request, (
            f"after {num_requests} more requests the processor keeps {grown} bytes more; finish() "
            "drops what belongs to a request"
        )
