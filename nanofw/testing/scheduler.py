"""What every scheduling policy must keep, driven over the simulated executor."""

from __future__ import annotations

import gc
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerView
from nanofw.testing.sim_engine import EngineShape, simulated_engine
from nanofw.testing.traffic import Traffic, random_traffic, serve

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
            def make(self):
                return MyPolicy(MyOptions(weight=2))

    Whatever a policy answers, the core loses no request and no block; these checks find the
    answers that end a run (nonsense, no progress), and state that is shared or only grows.

    Attributes:
        seeds: random traffics to serve.
        kept_bytes_per_request: how much the policy may remember of each finished request.
    """

    seeds: ClassVar[range] = range(4)
    kept_bytes_per_request: ClassVar[int] = 24

    @abstractmethod
    def make(self) -> Policy:
        """A fresh policy."""

    def test_every_request_is_served(self) -> None:
        """Random arrivals and aborts, both ways to compose a step, with and without overlap.

        Tokens are those of an engine with room for everything, whatever the policy did.
        """
        for seed, mode in zip(itertools.cycle(self.seeds), MODES, strict=False):
            traffic = random_traffic(seed)
            expected = _tokens_with_room(seed)
            for num_blocks in (10, 40):
                shape = _with(mode, num_blocks=num_blocks, max_num_seqs=2 + num_blocks // 6)
                record = serve(simulated_engine(self.make(), shape), traffic)
                for request_id, tokens in record.tokens().items():
                    whole = expected[request_id]
                    shed = record.outputs[request_id].finish_reason is FinishReason.SHED
                    if shed or request_id in traffic.aborts:  # it may have come further in either
                        whole = whole[: len(tokens)]
                        tokens = tokens[: len(whole)]
                    assert tokens == whole, f"the policy changed the tokens of {request_id!r}"

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
                serve(simulated_engine(self.make(), shape), traffic)

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
            record = serve(simulated_engine(self.make(), shape), Traffic(requests=requests))
            output = record.outputs["large"]
            assert len(output.token_ids) == 8 or output.finish_reason is FinishReason.SHED

    def test_a_burst_of_equal_requests(self) -> None:
        """Nothing tells them apart but their arrival; all are served."""
        sampling = SamplingParams(max_tokens=6)
        requests = tuple(
            Request(id=str(n), prompt_token_ids=[5] * 9, sampling=sampling, arrival=0.0)
            for n in range(60)
        )
        serve(simulated_engine(self.make(), EngineShape(num_blocks=12)), Traffic(requests=requests))

    def test_aborts_in_every_state(self) -> None:
        """B043: waiting, in the middle of a prefill, decoding, preempted; at any step."""
        requests = random_traffic(3, 10, steps_between_arrivals=0).requests
        for step in range(1, 24, 2):
            aborts = {request.id: step for request in requests}
            traffic = Traffic(requests=requests, aborts=aborts)
            for mode in (MODES[0], MODES[-1]):
                shape = _with(mode, num_blocks=11, max_num_batched_tokens=12)
                record = serve(simulated_engine(self.make(), shape), traffic)
                reasons = [output.finish_reason for output in record.outputs.values()]
                assert step > 4 or FinishReason.ABORT in reasons

    def test_two_runs_are_equal(self) -> None:
        """The same traffic gives the same steps: nothing is read but the arguments, and no state
        is shared between two policies of one process."""
        for mode in (MODES[1], MODES[-1]):
            traffic = random_traffic(5)
            shape = _with(mode, num_blocks=14)
            first, second = (serve(simulated_engine(self.make(), shape), traffic) for _ in "ab")
            assert first.reports == second.reports, "two runs took different steps"
            assert first.tokens() == second.tokens()

    def test_finished_requests_are_forgotten(self) -> None:
        """What a policy keeps does not grow with the number of requests that it has seen."""
        policy = self.make()
        engine = simulated_engine(policy, EngineShape(num_blocks=40))
        num_requests = 60
        for round_ in range(2):
            self._serve_round(engine, round_, num_requests)
        before = _reachable_bytes(policy)
        for round_ in range(2, 5):
            self._serve_round(engine, round_, num_requests)
        grown = _reachable_bytes(policy) - before
        allowed = 3 * num_requests * self.kept_bytes_per_request
        assert grown <= allowed, (
            f"after {3 * num_requests} more requests the policy keeps {grown} bytes more"
        )

    def _serve_round(self, engine: Any, round_: int, num_requests: int) -> None:
        now = engine.clock.now()
        traffic = random_traffic(round_, num_requests, prefix=f"{round_}:")
        shifted = [_later(request, now) for request in traffic.requests]
        serve(engine, Traffic(requests=tuple(shifted), aborts=traffic.aborts))


@lru_cache
def _tokens_with_room(seed: int) -> dict[str, list[int]]:
    """The tokens of a random traffic when there are blocks for everybody."""
    engine = simulated_engine(InOrder(), EngineShape(num_blocks=400, max_num_seqs=32))
    return serve(engine, random_traffic(seed)).tokens()


def _with(shape: EngineShape, **changes: Any) -> EngineShape:
    return replace(shape, **changes)


def _later(request: Request, seconds: float) -> Request:
    assert request.arrival is not None
    deadline = None if request.deadline is None else request.deadline + seconds
    return replace(request, arrival=request.arrival + seconds, deadline=deadline)


def _reachable_bytes(root: object) -> int:
    """Bytes of all objects that one keeps alive; code is left out."""
    code = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
    seen: set[int] = set()
    return sum(sys.getsizeof(item) for item in _reachable(root, seen, code))


def _reachable(root: object, seen: set[int], code: tuple[type, ...]) -> Iterator[object]:
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, code):
            continue
        seen.add(id(item))
        yield item
        stack += gc.get_referents(item)
