"""What every sampler must keep, for the parameters that it supports."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import DeviceSampler, Sampler, SamplerConfig
from nanofw.testing.memory import reachable_bytes
from nanofw.testing.rows import NUM_ROWS, VOCAB_SIZE
from nanofw.testing.sampler_driver import NUM_STEPS, SamplerDriver, ids_of, made_up_logits
from nanofw.testing.sampler_reference import LOGITS, NUM_SAMPLES, OUTPUT, PROMPT, SHAPING, shaped


class SamplerChecks(ABC):
    """Checks of one sampler; each `test_` method is one. Subclass it under pytest.

        class TestMySampler(SamplerChecks):
            def make(self, config):
                return MySampler(MyOptions(), config)

    A parameter that `check` refuses is not tried. A sampler of another distribution than
    docs/sampling.md describes declares its own in `probabilities`.

    Attributes:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing. The first goes with every parameter.
        wrong_arguments: what must be refused.
        device: where to run.
        kept_bytes_per_request: how much the sampler may remember of each finished request.
    """

    name: str = "sampler"
    arguments: ClassVar[Sequence[object]] = (None,)
    wrong_arguments: ClassVar[Sequence[object]] = ()
    device: str = "cpu"
    kept_bytes_per_request: ClassVar[int] = 16

    @abstractmethod
    def make(self, config: SamplerConfig) -> Sampler:
        """A fresh sampler."""

    def probabilities(
        self,
        logits: FloatArray,
        sampling: SamplingParams,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
    ) -> FloatArray:
        """The distribution that a request's next token must have, float64[v] of v logits.

        With temperature 0 one of them is 1. Of a request with the first of `arguments` which the
        sampler sees for the first time. Override it to declare another one.
        """
        return shaped(logits, sampling, prompt, output)

    @property
    def driver(self) -> SamplerDriver:
        """Samples with fresh samplers."""
        return SamplerDriver(self.make, self.device, self.name, self.arguments)

    def test_it_keeps_the_form_of_the_contract(self) -> None:
        """It derives from `Sampler`, and its methods are those of the contract."""
        sampler = self.driver.sampler()
        assert isinstance(sampler, Sampler), f"{type(sampler).__name__} must derive from Sampler"
        base = DeviceSampler if isinstance(sampler, DeviceSampler) else Sampler
        problems = hook_problems(type(sampler), base)
        assert not problems, "; ".join(problems)
        size = sampler.deferred_bytes
        assert isinstance(size, int), f"deferred_bytes is {size!r}, not an integer"
        assert size >= 0, f"deferred_bytes is {size}"

    def test_arguments_are_checked(self) -> None:
        """Wrong ones are refused with a ValueError that says something, right ones pass."""
        sampler, sampling = self.driver.sampler(), self.driver.supported()[0]
        for right in self.arguments:
            sampler.check(sampling, right)
        for wrong in self.wrong_arguments:
            reason = None
            try:
                sampler.check(sampling, wrong)
            except ValueError as error:
                reason = str(error)
            assert reason is not None, f"check lets the arguments {wrong!r} pass"
            assert reason, f"check refuses {wrong!r} without a reason"

    def test_a_token_depends_on_its_request_alone(self) -> None:
        """Alone, in a batch, in any order and in any row, a request gets the same tokens."""
        count = len(self.driver.requests())
        together = self.driver.sample_steps(range(count))
        for what, found in {
            "the order of a batch matters": self.driver.sample_steps(reversed(range(count))),
            "the row's number matters": self.driver.sample_steps(range(count), first_row=5),
        }.items():
            assert found == together, f"{what}: {_difference(found, together)}"
        for request in range(count):
            alone = self.driver.sample_steps([request])[request]
            assert alone == together[request], (
                f"request {request} alone: {alone}, beside others: {together[request]}"
            )

    def test_two_samplers_share_nothing(self) -> None:
        """One samples in the middle of the other's requests."""
        count, driver = len(self.driver.requests()), self.driver
        expected = driver.sample_steps(range(count))
        requests, sampler = driver.requests(), driver.sampler()
        for number, request in enumerate(requests):
            sampler.add_row(driver.row(request, number))
        for _ in range(NUM_STEPS):
            driver.continue_rows(sampler, dict(enumerate(requests)), 1, range(count))
            driver.sample_steps(reversed(range(count)), first_row=1)
        found = {number: request.output for number, request in enumerate(requests)}
        assert found == expected, f"another sampler changed it: {_difference(found, expected)}"

    def test_a_request_that_returns_goes_on(self) -> None:
        """After a preemption it gets another row, and the tokens that it would have got."""
        count = len(self.driver.requests())
        expected = self.driver.sample_steps(range(count))
        for step in range(1, NUM_STEPS):
            found = self.driver.sample_steps(range(count), preempt_before=step)
            assert found == expected, (
                f"after a preemption before step {step}: {_difference(found, expected)}"
            )

    def test_random_numbers_come_from_seed_sample_and_position(self) -> None:
        """Equal ones give equal tokens; any other one gives others."""
        driver, sampling = self.driver, self.driver.random_sampling()
        same = [driver.request(sampling, 7, sample_index=1) for _ in range(8)]
        tokens = driver.sample_uniformly(same)
        assert len(set(tokens)) == 1, f"equal seeds gave different tokens: {tokens}"
        expected = self.probabilities(np.zeros(VOCAB_SIZE), sampling, PROMPT, ())
        enough = float((1 - (1 - expected) ** NUM_ROWS).sum()) / 2  # half of what is expected
        for name, requests in {
            "seeds": [driver.request(sampling, seed) for seed in range(NUM_ROWS)],
            "samples": [driver.request(sampling, 7, sample_index=i) for i in range(NUM_ROWS)],
            "positions": [
                driver.request(sampling, 7, output=[1] * n) for n in range(1, NUM_ROWS + 1)
            ],
        }.items():
            tokens = driver.sample_uniformly(requests)
            assert len(set(tokens)) > enough, f"{NUM_ROWS} {name} gave {sorted(tokens)}"

    def test_temperature_0_takes_the_highest_logit(self) -> None:
        """Or the one token of its distribution, whatever the other rows do."""
        sampling = SamplingParams(temperature=0)
        if not self.driver.supports(sampling):
            raise SkipTest("temperature 0 is refused")
        requests = [self.driver.request(sampling, seed) for seed in range(4)]
        logits = np.stack([made_up_logits(request, 0) for request in range(4)])
        found = ids_of(self.driver.sample(requests, logits))
        expected = [
            int(self.probabilities(line.astype(float), sampling, PROMPT, ()).argmax())
            for line in logits
        ]
        assert found == expected, f"took {found} instead of {expected}"

    def test_of_equal_logits_the_lowest_id_wins(self) -> None:
        """With temperature 0, so that a seed and a prompt have one answer everywhere."""
        sampling, tied = SamplingParams(temperature=0), [7, 12, 50]
        if not self.driver.supports(sampling):
            raise SkipTest("temperature 0 is refused")
        logits = made_up_logits(0, 0)
        logits[tied] = logits.max() + 1
        expected = self.probabilities(logits.astype(float), sampling, PROMPT, ())
        if np.count_nonzero(expected == expected.max()) > 1:
            raise SkipTest("temperature 0 does not take the most likely token")
        found = ids_of(self.driver.sample([self.driver.request(sampling, 0)], logits[None]))
        best = int(expected.argmax())
        assert found == [best], f"of equal logits {tied} it took {found}"

    def test_a_top_k_that_is_off_cuts_nothing(self) -> None:
        """-1 as well as 0: every token of a uniform distribution is sampled now and then."""
        sampling, logits = SamplingParams(top_k=-1), np.zeros(VOCAB_SIZE)
        if not self.driver.supports(sampling):
            raise SkipTest(f"{sampling} is refused")
        expected = self.probabilities(logits, sampling, PROMPT, OUTPUT)
        found = self.driver.shares(sampling, logits, PROMPT, OUTPUT, num_samples=1024)
        never = np.flatnonzero((found == 0) & (expected > 0.01)).tolist()
        assert not never, f"{sampling}: tokens {never} are never sampled"

    def test_check_changes_nothing(self) -> None:
        """Requests that are checked while others run do not change the tokens of those."""
        driver, requests, sampler = self.driver, self.driver.requests(), self.driver.sampler()
        expected = driver.sample_steps(range(len(requests)))
        for number, request in enumerate(requests):
            sampler.add_row(driver.row(request, number))
        for step in range(NUM_STEPS):
            checked = requests[step % len(requests)]
            sampler.check(checked.sampling, checked.argument)
            driver.continue_rows(sampler, dict(enumerate(requests)), 1, range(len(requests)))
        found = {number: request.output for number, request in enumerate(requests)}
        assert found == expected, f"check() of others changed it: {_difference(found, expected)}"

    def test_parameters_shape_the_distribution(self) -> None:
        """Each parameter that `check` lets pass does what `probabilities` says of it.

        Thousands of samples from known logits: a token that is cut never comes, and shares of the
        others within five standard deviations.
        """
        for sampling in SHAPING:
            if not self.driver.supports(sampling):
                continue
            expected = self.probabilities(LOGITS, sampling, PROMPT, OUTPUT)
            found = self.driver.shares(sampling, LOGITS, PROMPT, OUTPUT)
            spread = np.sqrt(expected * (1 - expected) / NUM_SAMPLES)
            wrong = np.abs(found - expected) > 5 * spread + 1e-9
            assert not wrong.any(), (
                f"{sampling}: tokens {np.flatnonzero(wrong).tolist()} have shares "
                f"{found[wrong].round(3).tolist()} of the samples, should have "
                f"{expected[wrong].round(3).tolist()}"
            )

    def test_greedy_rows_obey_penalties_and_bans(self) -> None:
        """Without chance: bias, bad words, end tokens held back, penalties move the argmax."""
        for shaping in SHAPING:
            sampling = replace(shaping, temperature=0, top_k=0, top_p=1.0, min_p=0.0)
            if not self.driver.supports(sampling):
                continue
            best = int(self.probabilities(LOGITS, sampling, PROMPT, OUTPUT).argmax())
            found = self.driver.shares(sampling, LOGITS, PROMPT, OUTPUT, num_samples=NUM_ROWS)
            assert found[best] == 1, f"{sampling} gave {int(found.argmax())} instead of {best}"

    def test_scaled_logits_give_the_same_tokens(self) -> None:
        """With the temperatures applied by `scale`, as for processors that come after them."""
        driver = self.driver
        extreme = [SamplingParams(temperature=temperature) for temperature in (0.3, 3.0)]
        batches = [driver.requests()]
        batches += [
            [driver.request(sampling, seed) for seed in range(8)]
            for sampling in extreme
            if driver.supports(sampling)
        ]
        for requests, step in itertools.product(batches, range(8)):
            logits = np.stack([made_up_logits(number, step) for number in range(len(requests))])
            plain = ids_of(driver.sample(requests, logits))
            scaled = ids_of(driver.sample(requests, logits, scaled=True))
            assert scaled == plain, (
                f"after scale() {scaled}, without it {plain}, with temperatures of "
                f"{[request.sampling.temperature for request in requests]}"
            )

    def test_what_has_no_probability_is_never_sampled(self) -> None:
        """Logits of -inf, as a processor or a mask leaves them."""
        allowed = [20, 21, 30]
        logits = np.full((NUM_ROWS, VOCAB_SIZE), -np.inf, np.float32)
        logits[:, allowed] = 0.5
        for sampling in self.driver.supported():
            requests = [self.driver.request(sampling, seed) for seed in range(NUM_ROWS)]
            result = self.driver.sample(requests, logits)
            failed = np.flatnonzero(result.failed.cpu().numpy()).tolist()
            assert not failed, f"{sampling}: rows {failed} failed with finite logits"
            found = set(ids_of(result))
            assert found <= set(allowed), f"{sampling} sampled {sorted(found - set(allowed))}"

    def test_a_row_that_is_not_finite_fails_alone(self) -> None:
        """NaN, infinity, or no finite logit; the others get the tokens that they would have got."""
        expected = [False, True, True, True, False]
        for sampling in self.driver.supported():
            requests = [self.driver.request(sampling, seed) for seed in range(5)]
            logits = np.stack([made_up_logits(request, 1) for request in range(5)])
            good = ids_of(self.driver.sample(requests, logits))
            logits[1, 40], logits[2, 40], logits[3] = np.nan, np.inf, -np.inf
            result = self.driver.sample(requests, logits)
            failed = result.failed.cpu().numpy().tolist()
            assert failed == expected, f"{sampling}: failed is {failed}, not {expected}"
            found = ids_of(result)
            assert [found[0], found[4]] == [good[0], good[4]], (
                f"{sampling}: rows beside failed ones got {[found[0], found[4]]}, alone "
                f"{[good[0], good[4]]}"
            )
            assert all(0 <= token < VOCAB_SIZE for token in found), (
                f"a failed row's id must exist: {found}"
            )

    def test_a_row_knows_nothing_of_the_request_before(self) -> None:
        """Each request after each other one in the same row."""
        driver = self.driver
        count = len(driver.requests())
        expected = driver.sample_steps(range(count))
        for before in range(count):
            for after in range(count):
                sampler = driver.sampler()
                first, second = driver.requests()[before], driver.requests()[after]
                sampler.add_row(driver.row(first, 0))
                driver.continue_rows(sampler, {0: first}, NUM_STEPS, [before])
                driver.end(sampler, {0: first})
                sampler.add_row(driver.row(second, 0))
                driver.continue_rows(sampler, {0: second}, NUM_STEPS, [after])
                assert second.output == expected[after], (
                    f"{second.sampling} in a row that had {first.sampling}: {second.output}, in a "
                    f"new one {expected[after]}"
                )

    def test_finished_requests_are_forgotten(self) -> None:
        """What a sampler keeps does not grow with the number of requests that it has seen."""
        driver, sampler, sizes = self.driver, self.driver.sampler(), list[int]()
        num_requests = 0
        for round_ in range(9):
            for number, request in enumerate(driver.requests()):
                sampler.add_row(driver.row(request, number))
                driver.continue_rows(sampler, {number: request}, 1, [number])
                driver.end(sampler, {number: request})
                num_requests += round_ > 2
            sizes.append(reachable_bytes(sampler))
        grown = sizes[-1] - sizes[2]
        assert grown <= num_requests * self.kept_bytes_per_request, (
            f"after {num_requests} more requests the sampler keeps {grown} bytes more"
        )

    def test_shapes_and_types(self) -> None:
        """int32[s] and bool[s] on the device, also when no row samples."""
        import torch

        for count in (3, 0):
            sampling = self.driver.supported()[0]
            requests = [self.driver.request(sampling, seed) for seed in range(count)]
            result = self.driver.sample(requests, np.zeros((count, VOCAB_SIZE), np.float32))
            for name, dtype in (("token_ids", torch.int32), ("failed", torch.bool)):
                value = getattr(result, name)
                found = (value.dtype, tuple(value.shape), value.device.type)
                expected = (dtype, (count,), torch.device(self.device).type)
                assert found == expected, f"{name} is {found}, must be {expected}"


def _difference(found: dict[int, list[int]], expected: dict[int, list[int]]) -> str:
    """The first request whose tokens differ."""
    for number, tokens in expected.items():
        if found[number] != tokens:
            return f"request {number} got {found[number]} instead of {tokens}"
    return "the requests differ"
