"""What every scheduling policy must keep, driven over the simulated executor."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, TypedDict, Unpack
from unittest import SkipTest

from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerConfig, SchedulerView
from nanofw.engine.engine import Engine
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.group_keys import WatchedGroups
from nanofw.testing.hashes import with_hashes
from nanofw.testing.memory import reachable_bytes
from nanofw.testing.sim_engine import EngineShape, simulated_engine
from nanofw.testing.traffic import Record, Traffic, random_traffic, serve, steps
from nanofw.testing.watched_finish import WatchedFinish

NAME = "policy"
NUM_SAMPLES = 3
"""Of every sixth request; they end at different times."""
MODES = tuple(
    EngineShape(overlap=overlap, prefill_first=prefill_first, prefix_cache=prefix_cache)
    for overlap, prefill_first, prefix_cache in itertools.product((False, True), repeat=3)
)


class InOrder(Policy):
    """First come, first served: what other policies are compared with."""

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival


class SchedulerChecks(ABC):
    """Checks of one policy; each `test_` method is one. Subclass it under pytest.

        class TestMyPolicy(SchedulerChecks):
            def make(self, config):
                return MyPolicy(MyOptions(weight=2), config)

    Whatever a policy answers, the core loses no request and no block; these checks find the
    answers that end a run (nonsense, no progress), order that differs between processes, and
    state that is shared or only grows. A policy may refuse requests.

    Attributes:
        seeds: random traffics to serve.
        kept_bytes_per_request: how much the policy may remember of each finished request.
    """

    seeds: ClassVar[range] = range(4)
    kept_bytes_per_request: ClassVar[int] = 24

    @abstractmethod
    def make(self, config: SchedulerConfig) -> Policy:
        """A fresh policy."""

    def policy(self, shape: EngineShape) -> Policy:
        """A fresh policy of an engine of that shape."""
        return self.make(SchedulerConfig(name=NAME, limits=shape.limits()))

    def engine(self, shape: EngineShape) -> Engine:
        """An engine of that shape with a fresh policy."""
        return simulated_engine(self.policy(shape), shape)

    def test_every_request_is_served(self) -> None:
        """Random arrivals and aborts, both ways to compose a step, with and without overlap.

        Tokens are those of an engine with room for everything, whatever the policy did.
        """
        for seed, mode in zip(itertools.cycle(self.seeds), MODES, strict=False):
            traffic = _traffic(seed)
            expected = _tokens_with_room(seed)
            for num_blocks in (10, 40):
                shape = _with(mode, num_blocks=num_blocks, max_num_seqs=2 + num_blocks // 6)
                record = serve(self.engine(shape), traffic)
                for request_id, tokens in record.tokens().items():
                    whole, output = expected[request_id], record.outputs[request_id]
                    shed = output.finish_reason is FinishReason.SHED
                    if shed or output.id in traffic.aborts:  # it may have come further in either
                        whole = whole[: len(tokens)]
                        tokens = tokens[: len(whole)]
                    assert tokens == whole, (
                        f"the policy changed the tokens of {request_id!r}: {tokens}, not {whole}"
                    )

    def test_short_steps_and_chunks(self) -> None:
        """Budgets below the number of rows, chunks of one token, several partial prefills."""
        traffic = random_traffic(7, num_requests=12)
        for budget, chunk, partial in ((1, None, 1), (3, 1, 2), (7, 2, 3), (32, 5, 2)):
            for mode in MODES[::3]:
                shape = _with(
                    mode,
                    num_blocks=16,
                    max_num_batched_tokens=budget,
                    chunk_tokens=chunk,
                    max_partial_prefills=partial,
                )
                serve(self.engine(shape), traffic)

    def test_a_request_as_large_as_the_pool(self) -> None:
        """It is served, alone and between small ones."""
        sampling = SamplingParams(max_tokens=8, ignore_eos=True)
        large = Request(id="large", prompt_token_ids=[1] * 32, sampling=sampling, arrival=0.0)
        small = [
            Request(id=str(n), prompt_token_ids=[n + 2] * 3, sampling=sampling, arrival=0.0)
            for n in range(4)
        ]
        shape = EngineShape(num_blocks=10)
        for requests in ((large,), (*small, large), (large, *small)):
            record = serve(self.engine(shape), Traffic(requests=requests))
            output = record.outputs["large"]
            num = len(output.token_ids)
            assert num == 8 or output.finish_reason is FinishReason.SHED, (
                f"the request that needs the whole pool got {num} of 8 tokens and ended with "
                f"{output.finish_reason}: {output.error}"
            )

    def test_a_burst_of_equal_requests(self) -> None:
        """Nothing tells them apart but their arrival; all are served."""
        sampling = SamplingParams(max_tokens=6)
        requests = tuple(
            Request(id=str(n), prompt_token_ids=[5] * 9, sampling=sampling, arrival=0.0)
            for n in range(60)
        )
        serve(self.engine(EngineShape(num_blocks=12)), Traffic(requests=requests))

    def test_aborts_in_every_state(self) -> None:
        """B043: waiting, in the middle of a prefill, decoding, preempted; at any step."""
        traffic = random_traffic(3, 10, steps_between_arrivals=0, num_samples=NUM_SAMPLES)
        requests = traffic.requests
        for step in range(1, 24, 2):
            aborts = {request.id: step for request in requests}
            traffic = Traffic(requests=requests, aborts=aborts)
            for mode in (MODES[0], MODES[-1]):
                shape = _with(mode, num_blocks=11, max_num_batched_tokens=12)
                record = serve(self.engine(shape), traffic)
                reasons = [output.finish_reason for output in record.outputs.values()]
                assert step > 4 or FinishReason.ABORT in reasons, (
                    f"all requests were aborted at step {step}, and they ended with {reasons}"
                )

    def test_policies_share_no_state(self) -> None:
        """Two in one process, as replicas have them, take the steps that each takes alone."""
        shape = EngineShape(num_blocks=14)
        traffics = [_traffic(seed) for seed in (5, 6)]
        before = class_state(type(self.policy(shape)))
        alone = [serve(self.engine(shape), traffic) for traffic in traffics]
        records = Record(), Record()
        runs = [
            steps(self.engine(shape), traffic, record)
            for traffic, record in zip(traffics, records, strict=True)
        ]
        for _ in itertools.zip_longest(*runs):
            pass
        check_class_state(before, type(self.policy(shape)))
        for one, beside in zip(alone, records, strict=True):
            difference = _difference(one, beside)
            assert difference is None, f"a run beside another one differs: {difference}"

    def test_two_runs_are_equal(self) -> None:
        """The same traffic gives the same steps: nothing is read but the arguments.

        In some runs ids and clients have other hashes, as in another process.
        """
        for mode in (MODES[1], MODES[-1]):
            traffic = _traffic(5)
            shape = _with(mode, num_blocks=14)
            first, second, *others = (
                serve(self.engine(shape), with_hashes(traffic, salt)) for salt in (1, 1, 2, 3, 4)
            )
            difference = _difference(first, second)
            assert difference is None, f"two runs of the same traffic differ: {difference}"
            for other in others:
                difference = _difference(first, other)
                assert difference is None, (
                    "runs with other hashes of texts differ, as runs of two processes would: "
                    f"{difference}; hash() and the order of a set are other in each process"
                )

    def test_keys_of_groups_only_grow(self) -> None:
        """While a group has waiting requests, its key does not become smaller."""
        for seed, mode in zip(self.seeds, itertools.cycle((MODES[1], MODES[-1])), strict=False):
            shape = _with(mode, num_blocks=14, max_num_seqs=3)
            policy = self.policy(shape)
            if type(policy).group is Policy.group:
                raise SkipTest("the policy has no groups")
            groups = WatchedGroups(policy)
            serve(simulated_engine(policy, shape), _traffic(seed))
            assert not groups.shrunk, groups.shrunk[0]

    def test_on_finish_raises_nothing(self) -> None:
        """A run only logs what `on_finish` raises. Samples of a request end one by one: state
        that is kept by an id that they share is gone when the second one ends."""
        for seed, mode in zip(self.seeds, (MODES[1], MODES[-1]), strict=False):
            shape = _with(mode, num_blocks=14, max_num_seqs=3)
            policy = self.policy(shape)
            watched = WatchedFinish(policy)
            serve(simulated_engine(policy, shape), _traffic(seed))
            assert not watched.errors, watched.errors[0]

    def test_finished_requests_are_forgotten(self) -> None:
        """What a policy keeps does not grow with the number of requests that it has seen, nor
        with that of preemptions."""
        num_requests = 60
        allowed = 3 * num_requests * self.kept_bytes_per_request
        for num_blocks in (40, 12):
            shape = EngineShape(num_blocks=num_blocks)
            policy = self.policy(shape)
            engine = simulated_engine(policy, shape)
            for round_ in range(2):
                self._serve_round(engine, round_, num_requests)
            before = reachable_bytes(policy)
            for round_ in range(2, 5):
                self._serve_round(engine, round_, num_requests)
            grown = reachable_bytes(policy) - before
            assert grown <= allowed, (
                f"after {3 * num_requests} more requests in {num_blocks} blocks, with "
                f"{engine.scheduler.counters.num_preemptions} preemptions in all, the policy "
                f"keeps {grown} bytes more; {allowed} are allowed (kept_bytes_per_request)"
            )

    def _serve_round(self, engine: Engine, round_: int, num_requests: int) -> None:
        now = engine.clock.now()
        traffic = random_traffic(round_, num_requests, prefix=f"{round_}:")
        shifted = [_later(request, now) for request in traffic.requests]
        serve(engine, Traffic(requests=tuple(shifted), aborts=traffic.aborts))


def _traffic(seed: int) -> Traffic:
    """18 requests, of which three have several samples."""
    return random_traffic(seed, num_requests=18, num_samples=NUM_SAMPLES)


@lru_cache
def _tokens_with_room(seed: int) -> dict[str, list[int]]:
    """The tokens of a random traffic when there are blocks for everybody."""
    engine = simulated_engine(InOrder(), EngineShape(num_blocks=400, max_num_seqs=32))
    return serve(engine, _traffic(seed)).tokens()


class _Changes(TypedDict, total=False):
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_tokens: int | None
    max_partial_prefills: int


def _with(shape: EngineShape, **changes: Unpack[_Changes]) -> EngineShape:
    return replace(shape, **changes)


def _difference(first: Record, second: Record) -> str | None:
    """Where two runs parted; None: nowhere."""
    for number, (one, other) in enumerate(zip(first.reports, second.reports, strict=False)):
        if one != other:
            return f"step {number} was {one} and {other}"
    if len(first.reports) != len(second.reports):
        return f"{len(first.reports)} and {len(second.reports)} steps"
    theirs = second.tokens()
    for request_id, tokens in first.tokens().items():
        if tokens != theirs.get(request_id):
            return f"request {request_id!r} got {tokens} and {theirs.get(request_id)}"
    return None


def _later(request: Request, seconds: float) -> Request:
    assert request.arrival is not None
    deadline = None if request.deadline is None else request.deadline + seconds
    return replace(request, arrival=request.arrival + seconds, deadline=deadline)
