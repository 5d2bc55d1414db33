"""What every sampler must keep, for the parameters that it supports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from unittest import SkipTest

import numpy as np

from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import Sampler, SamplerConfig
from nanofw.testing.rows import NUM_ROWS, VOCAB_SIZE
from nanofw.testing.sampler_driver import (
    NUM_STEPS,
    SampledRequest,
    SamplerDriver,
    made_up_logits,
)
from nanofw.testing.sampler_reference import LOGITS, NUM_SAMPLES, OUTPUT, PROMPT, SHAPING, shaped


class SamplerChecks(ABC):
    """Checks of one sampler; each `test_` method is one. Subclass it under pytest.

        class TestMySampler(SamplerChecks):
            def make(self, config):
                return MySampler(MyOptions(), config)

    A parameter that `check` refuses is not tried.

    Attributes:
        device: where to run.
    """

    device: str = "cpu"

    @abstractmethod
    def make(self, config: SamplerConfig) -> Sampler:
        """A fresh sampler."""

    @property
    def driver(self) -> SamplerDriver:
        """Samples with fresh samplers."""
        return SamplerDriver(self.make, self.device)

    def test_a_token_depends_on_its_request_alone(self) -> None:
        """Alone, in a batch, in any order and in any row, a request gets the same tokens."""
        count = len(self.driver.supported())
        together = self.driver.sample_steps(range(count))
        assert self.driver.sample_steps(reversed(range(count))) == together, (
            "the order of a batch matters"
        )
        assert self.driver.sample_steps(range(count), first_row=5) == together, (
            "the row's number matters"
        )
        for request in range(count):
            alone = self.driver.sample_steps([request])[request]
            assert alone == together[request], (
                f"request {request} alone: {alone}, beside others: {together[request]}"
            )

    def test_a_request_that_returns_goes_on(self) -> None:
        """After a preemption it gets another row, and the tokens that it would have got."""
        count = len(self.driver.supported())
        expected = self.driver.sample_steps(range(count))
        for step in range(1, NUM_STEPS):
            found = self.driver.sample_steps(range(count), preempt_before=step)
            assert found == expected, f"tokens differ after a preemption before step {step}"

    def test_random_numbers_come_from_seed_sample_and_position(self) -> None:
        """Equal ones give equal tokens; any other one gives others."""
        sampling = self.driver.random_sampling()
        same = [SampledRequest(sampling, 7, 1)] * 8
        assert len(set(self.driver.sample_uniformly(same))) == 1, (
            "equal seeds gave different tokens"
        )
        for name, requests in {
            "seeds": [SampledRequest(sampling, seed) for seed in range(NUM_ROWS)],
            "samples": [SampledRequest(sampling, 7, index) for index in range(NUM_ROWS)],
            "positions": [SampledRequest(sampling, 7, 0, (1,) * n) for n in range(1, NUM_ROWS + 1)],
        }.items():
            tokens = self.driver.sample_uniformly(requests)
            assert len(set(tokens)) > NUM_ROWS // 2, f"{NUM_ROWS} {name} gave {sorted(tokens)}"

    def test_temperature_0_takes_the_highest_logit(self) -> None:
        """Whatever the other rows do."""
        sampling = SamplingParams(temperature=0)
        if not self.driver.supports(sampling):
            raise SkipTest("temperature 0 is refused")
        requests = [SampledRequest(sampling, seed) for seed in range(4)]
        logits = np.stack([made_up_logits(request, 0) for request in range(4)])
        found = self.driver.sample(requests, logits).token_ids.tolist()
        assert found == logits.argmax(axis=1).tolist()

    def test_parameters_shape_the_distribution(self) -> None:
        """Each parameter that `check` lets pass does what docs/sampling.md says of it.

        Thousands of samples from known logits: none of a token that is cut, and shares of the
        others within five standard deviations.
        """
        for sampling in SHAPING:
            if not self.driver.supports(sampling):
                continue
            expected = shaped(LOGITS, sampling, PROMPT, OUTPUT)
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
            best = int(shaped(LOGITS, sampling, PROMPT, OUTPUT).argmax())
            found = self.driver.shares(sampling, LOGITS, PROMPT, OUTPUT, num_samples=NUM_ROWS)
            assert found[best] == 1, f"{sampling} gave {int(found.argmax())} instead of {best}"

    def test_what_has_no_probability_is_never_sampled(self) -> None:
        """Logits of -inf, as a processor or a mask leaves them."""
        allowed = [20, 21, 30]
        logits = np.full((NUM_ROWS, VOCAB_SIZE), -np.inf, np.float32)
        logits[:, allowed] = 0.5
        for sampling in self.driver.supported():
            requests = [SampledRequest(sampling, seed) for seed in range(NUM_ROWS)]
            result = self.driver.sample(requests, logits)
            assert not result.failed.any(), f"failed with finite logits: {sampling}"
            assert set(result.token_ids.tolist()) <= set(allowed), sampling

    def test_a_row_that_is_not_finite_fails_alone(self) -> None:
        """NaN, infinity, or no finite logit; the others get the tokens that they would have got."""
        for sampling in self.driver.supported():
            requests = [SampledRequest(sampling, seed) for seed in range(5)]
            logits = np.stack([made_up_logits(request, 1) for request in range(5)])
            good = self.driver.sample(requests, logits).token_ids.tolist()
            logits[1, 40], logits[2, 40], logits[3] = np.nan, np.inf, -np.inf
            result = self.driver.sample(requests, logits)
            assert result.failed.tolist() == [False, True, True, True, False], sampling
            found = result.token_ids.tolist()
            assert [found[0], found[4]] == [good[0], good[4]], sampling
            assert all(0 <= token < VOCAB_SIZE for token in found), "a failed row's id must exist"

    def test_a_row_knows_nothing_of_the_request_before(self) -> None:
        """Each request after each other one in the same row."""
        count = len(self.driver.supported())
        expected = self.driver.sample_steps(range(count))
        for before in range(count):
            for after in range(count):
                sampler = self.driver.sampler()
                first, second = self.driver.requests()[before], self.driver.requests()[after]
                sampler.add(first.row(0))
                self.driver.continue_rows(sampler, {0: first}, NUM_STEPS, [before])
                sampler.remove(0)
                sampler.add(second.row(0))
                self.driver.continue_rows(sampler, {0: second}, NUM_STEPS, [after])
                assert second.output == expected[after], (
                    f"{second.sampling} in a row that had {first.sampling}"
                )

    def test_shapes_and_types(self) -> None:
        """int32[s] and bool[s] on the device, also when no row samples."""
        import torch

        for count in (3, 0):
            requests = [SampledRequest(self.driver.supported()[0], seed) for seed in range(count)]
            result = self.driver.sample(requests, np.zeros((count, VOCAB_SIZE), np.float32))
            assert result.token_ids.dtype == torch.int32
            assert result.failed.dtype == torch.bool
            assert result.token_ids.shape == result.failed.shape == (count,)
            assert result.token_ids.device.type == torch.device(self.device).type
