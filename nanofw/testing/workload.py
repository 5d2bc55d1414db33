"""What every workload must keep: requests that can be served, and that depend on nothing else."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias
from unittest import SkipTest, mock

import numpy as np

from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.measure.drive import drive
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.hashes import other_hashes
from nanofw.testing.scheduler import InOrder
from nanofw.testing.sim_engine import VOCAB_SIZE, EngineShape, simulated_engine

SAMPLING = SamplingParams(temperature=0.25, top_p=0.5, presence_penalty=0.5)
"""As a configuration may state it, so that it shows where a workload takes another one."""
CONFIG = WorkloadConfig(
    vocab_size=VOCAB_SIZE, max_model_len=256, seed=3, start=10.0, sampling=SAMPLING
)
PREFIX_TOKENS = 8
"""Prompts that agree in this number of tokens do not do so by chance."""
MIN_REQUESTS, MAX_FACTOR = 20, 4.0
"""Of the check of the rate: fewer requests say nothing of it, and chance explains no more."""

_Facts: TypeAlias = tuple[object, ...]


class WorkloadChecks(ABC):
    """Checks of one workload; each `test_` method is one. Subclass it under pytest.

        class TestMyWorkload(WorkloadChecks):
            def make(self, config):
                return MyWorkload(MyOptions(num_requests=40), config)

    Attributes:
        depends_on_seed: another seed gives other requests; False where they are given.
    """

    depends_on_seed: ClassVar[bool] = True

    @abstractmethod
    def make(self, config: WorkloadConfig) -> Workload:
        """A fresh workload of a few dozen requests."""

    def test_methods_are_those_of_the_contract(self) -> None:
        """No name is misspelt, and each method can be called as the contract says."""
        problems = hook_problems(type(self.make(CONFIG)), Workload)
        assert not problems, "; ".join(problems)

    def test_requests_can_be_served(self) -> None:
        """Each fits the model and has an id and a length of its own; arrivals do not fall."""
        ids, last = set[str](), CONFIG.start
        for request in self.make(CONFIG).initial():
            arrival = request.arrival
            is_time = arrival is not None and math.isfinite(arrival) and arrival >= last
            assert is_time, (
                f"request {request.id!r} arrives at {arrival!r}, after {last} s: times must be "
                f"numbers from the start, {CONFIG.start} s, that do not fall"
            )
            last = arrival or last
            assert request.id not in ids, f"two requests have the id {request.id!r}"
            ids.add(request.id)
            self._check_length(request)
            deadline = request.deadline
            assert deadline is None or deadline >= last, (
                f"request {request.id!r} arrives at {last} s with the deadline {deadline} s: it is "
                "a time on the engine's clock, not a time from the arrival on"
            )

    def test_requests_are_sampled_as_configured(self) -> None:
        """`sampling` of the config, with a length, a seed and `ignore_eos` of the workload."""
        requests = [request for _, request in _served(self.make(CONFIG))]
        for request in requests:
            own = request.sampling
            expected = replace(
                SAMPLING, max_tokens=own.max_tokens, seed=own.seed, ignore_eos=own.ignore_eos
            )
            assert own == expected, f"request {request.id!r} has {own}; {expected} was configured"
            assert own.ignore_eos, (
                f"request {request.id!r} ends at an end token: its length is then another one for "
                "each model; set ignore_eos"
            )
            assert own.seed is not None, (
                f"request {request.id!r} has no seed, and its tokens depend on which requests came "
                "before it"
            )
        seeds = {request.sampling.seed for request in requests}
        assert len(seeds) > 1 or len(requests) < 2, (
            f"all {len(requests)} requests have the seed {seeds}, and equal prompts equal answers"
        )

    def test_prefixes_are_announced(self) -> None:
        """Without `shares_prefixes` no two prompts begin alike."""
        workload = self.make(CONFIG)
        if workload.shares_prefixes:
            raise SkipTest("shares_prefixes says that prompts may begin alike")
        seen: dict[tuple[int, ...], str] = {}
        for _, request in _served(workload):
            start = tuple(int(token) for token in request.prompt_token_ids[:PREFIX_TOKENS])
            other = seen.setdefault(start, request.id)
            assert len(start) < PREFIX_TOKENS or other == request.id, (
                f"requests {other!r} and {request.id!r} begin with the same {len(start)} tokens, "
                "and shares_prefixes is False"
            )

    def test_what_follows_comes_after_the_answer(self) -> None:
        """Requests of `follow` arrive when their answer is there, or later, and fit the model."""
        workload = self.make(CONFIG)
        follow = workload.follow

        def watched(output: RequestOutput) -> Sequence[Request]:
            requests = follow(output)
            for request in requests:
                self._check_length(request)
                arrival = request.arrival
                is_later = arrival is not None and arrival >= output.finished
                assert is_later, (
                    f"request {request.id!r} follows the answer to {output.id!r}, which came at "
                    f"{output.finished} s, and arrives at {arrival!r}"
                )
            return requests

        with mock.patch.object(workload, "follow", watched):
            _served(workload)

    def _check_length(self, request: Request) -> None:
        tokens, output = np.asarray(request.prompt_token_ids), request.sampling.max_tokens
        are_ids = tokens.ndim == 1 and tokens.size > 0 and tokens.dtype.kind in "iu"
        assert are_ids, (
            f"request {request.id!r}: the prompt is {tokens.dtype}{list(tokens.shape)}; it must be "
            "integers in one dimension, and not empty"
        )
        low, high = int(tokens.min()), int(tokens.max())
        assert 0 <= low <= high < CONFIG.vocab_size, (
            f"request {request.id!r} has token ids from {low} to {high}; the vocabulary has "
            f"{CONFIG.vocab_size}"
        )
        assert 1 <= (output or 0) <= CONFIG.max_model_len - len(tokens), (
            f"request {request.id!r} has {len(tokens)} prompt tokens and max_tokens {output}, and "
            f"the model's length is {CONFIG.max_model_len}: cut them to it"
        )

    def test_all_that_is_promised_comes(self) -> None:
        """Served to the end, with what follows the answers, there are `num_requests`."""
        workload = self.make(CONFIG)
        ended = [output for output, _ in _served(workload)]
        promised = workload.num_requests
        assert len(ended) == promised, f"{promised} requests were promised, and {len(ended)} came"
        failed = [output for output in ended if not output.finish_reason.is_served]
        assert not failed, (
            f"{len(failed)} requests were not served, first {failed[0].id!r}, which ended with "
            f"{failed[0].finish_reason}: {failed[0].error}"
        )

    def test_requests_depend_on_the_config_alone(self) -> None:
        """Two workloads of one config are equal, one after the other and side by side."""
        before = class_state(type(self.make(CONFIG)))
        alone = _all_facts(self.make(CONFIG).initial())
        others = self.make(replace(CONFIG, seed=CONFIG.seed + 1)).initial()
        beside: list[Request] = []
        for request, _ in itertools.zip_longest(self.make(CONFIG).initial(), others):
            if request is not None:
                beside.append(request)
        _check_equal(alone, _all_facts(beside), "beside a workload of another seed")
        first, second = (_served(self.make(CONFIG)) for _ in "ab")
        _check_equal(
            [_facts(request) for _, request in first],
            [_facts(request) for _, request in second],
            "when it was served again",
        )
        with other_hashes(1):
            elsewhere = _all_facts(self.make(CONFIG).initial())
        _check_equal(alone, elsewhere, "where texts have other hashes, as in another process")
        check_class_state(before, type(self.make(CONFIG)))

    def test_another_seed_gives_other_requests(self) -> None:
        """Where requests depend on the seed; otherwise they are the same."""
        first, other = (
            _all_facts(self.make(replace(CONFIG, seed=seed)).initial()) for seed in (3, 4)
        )
        if self.depends_on_seed:
            assert first != other, (
                f"two seeds gave the same {len(first)} requests, first {first[:1]}; say so with "
                "depends_on_seed = False where they are given"
            )
        else:
            _check_equal(first, other, "under another seed, though depends_on_seed is False")

    def test_times_are_scaled_and_nothing_else(self) -> None:
        """`time_scale` stretches the times since `start`; prompts and lengths stay."""
        base = _by_id(self.make(CONFIG))
        for scale, start in ((2.0, 10.0), (0.0, 10.0), (1.0, 25.0)):
            scaled = _by_id(self.make(replace(CONFIG, time_scale=scale, start=start)))
            _check_equal(
                [_facts(request)[1:4] for request in base],
                [_facts(request)[1:4] for request in scaled],
                f"under time_scale {scale} and start {start}",
            )
            for one, other in zip(base, scaled, strict=True):
                expected = start + scale * ((one.arrival or 0.0) - CONFIG.start)
                found = other.arrival or 0.0
                assert math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6), (
                    f"request {other.id!r} arrives at {found} s under time_scale {scale} and start "
                    f"{start}; {expected} s was expected"
                )

    def test_the_rate_is_that_of_the_arrivals(self) -> None:
        """`rate` is what loads are reckoned with."""
        workload = self.make(CONFIG)
        rate = workload.rate
        times = [request.arrival or 0.0 for request in workload.initial()]
        if rate is None or not MIN_REQUESTS <= len(times) == workload.num_requests:
            return  # few, or more follow
        assert rate > 0, f"rate is {rate!r}"
        found = (len(times) - 1) / max(times[-1] - times[0], 1e-9)
        assert 1 / MAX_FACTOR < found / rate < MAX_FACTOR, (
            f"rate is {rate:g} a second, and {len(times)} requests came at {found:g} a second"
        )


def _served(workload: Workload) -> list[tuple[RequestOutput, Request]]:
    """Outputs in the order in which they ended, with their requests."""
    shape = EngineShape(
        num_blocks=2048, block_size=16, max_num_seqs=16, max_num_batched_tokens=256,
        max_model_len=CONFIG.max_model_len,
    )  # fmt: skip
    engine = simulated_engine(InOrder(), shape, eos_probability=0.0, check_context=False)
    requests: dict[str, Request] = {}

    def note(request: Request, now: float) -> None:
        requests[request.id] = request

    return [
        (output, requests[output.id])
        for step in drive(engine, workload, note)
        for output in step.finished
    ]


def _by_id(workload: Workload) -> list[Request]:
    """The requests in the order of their ids: at one time they may come in any order."""
    return sorted(workload.initial(), key=lambda request: request.id)


def _all_facts(requests: Iterable[Request]) -> list[_Facts]:
    return [_facts(request) for request in requests]


def _facts(request: Request) -> _Facts:
    """What a request says, in values that can be compared."""
    return (
        request.arrival, request.id, [int(token) for token in request.prompt_token_ids],
        request.sampling, request.client, request.priority, request.deadline,
        request.expected_output_tokens, dict(request.arguments),
    )  # fmt: skip


def _check_equal(first: list[_Facts], second: list[_Facts], when: str) -> None:
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        assert one == other, f"request {number} is {one}, and {other} {when}"
    assert len(first) == len(second), f"{len(first)} requests, and {len(second)} {when}"
