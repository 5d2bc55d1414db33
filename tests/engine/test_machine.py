"""Engine, scheduler and allocator as one state machine over the simulated executor.

Whatever arrives, in whatever order, under whatever policy: no block is lost or owned twice,
budgets are kept, everybody finishes or is refused, and every token is the one that the request
would get alone. The executor checks each plan and draws tokens from the context that it reads
through the block table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.engine import Engine
from nanofw.engine.request_state import derive_seed
from nanofw.errors import NanofwError, PolicyError, RequestError, RequestShed
from tests.engine.policies import POWERFUL, SHIPPED, SOUND, Nonsense
from tests.engine.sim_engines import EOS, FirstCome, Run, make_engine, make_request

MODEL_LENGTH = 48


@lru_cache(maxsize=20_000)
def tokens_alone(
    prompt: tuple[int, ...], max_tokens: int | None, seed: int, sim: tuple[tuple[str, Any], ...]
) -> tuple[list[int], FinishReason]:
    """What the request gets from an engine of its own, with room for everything."""
    engine = make_engine(
        allocator="paged",
        num_blocks=64,
        max_model_len=MODEL_LENGTH,
        max_num_batched_tokens=64,
        sim=dict(sim),
    )
    run = Run(engine)
    engine.add_request(make_request("alone", list(prompt), max_tokens, seed=seed))
    output = run.to_end().outputs["alone"]
    return output.token_ids.tolist(), output.finish_reason


class EngineMachine(RuleBasedStateMachine):
    """Random requests, steps, aborts and truncations against one engine."""

    ids = Bundle("ids")

    @initialize(
        policy=st.sampled_from(["first_come", *POWERFUL, *SOUND, *SHIPPED]),
        allocator=st.sampled_from(["paged", "paged_prefix"]),
        overlap=st.booleans(),
        prefill_first=st.booleans(),
        num_blocks=st.sampled_from([3, 6, 12, 40]),
        block_size=st.sampled_from([1, 4, 16]),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.sampled_from([1, 5, 16, 64]),
        chunk_tokens=st.sampled_from([None, 1, 6]),
        max_partial_prefills=st.integers(1, 3),
        eos_probability=st.sampled_from([0.0, 0.1]),
        failure_probability=st.sampled_from([0.0, 0.0, 0.02]),
    )
    def start(
        self, policy: str, eos_probability: float, failure_probability: float, **sizes: Any
    ) -> None:
        make = {"first_come": FirstCome, **POWERFUL, **SOUND, **SHIPPED}[policy]
        self.sim = (
            ("eos_probability", eos_probability),
            ("failure_probability", failure_probability),
        )
        self.engine: Engine = make_engine(
            make(), max_model_len=MODEL_LENGTH, sim=dict(self.sim), **sizes
        )
        self.run = Run(self.engine)
        self.requests: dict[str, Request] = {}
        self.kept: dict[str, int] = {}
        self.num_added = 0

    @rule(
        target=ids,
        family=st.integers(0, 2),
        length=st.integers(1, 30),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        priority=st.integers(0, 3),
        client=st.sampled_from(["a", "b", "c"]),
        ignore_eos=st.booleans(),
        cache_salt=st.sampled_from(["", "", "x", "y"]),
    )
    def add(self, family: int, length: int, max_tokens: int | None, **fields: Any) -> str:
        prompt = [(7 * family + 3 * i + family * i * i) % EOS for i in range(length)]
        name = f"r{self.num_added}"
        ignore_eos = fields.pop("ignore_eos")
        seed = derive_seed(0, self.num_added)
        self.num_added += 1
        request = make_request(name, prompt, max_tokens, **fields, ignore_eos=ignore_eos, seed=seed)
        try:
            self.engine.add_request(request)
        except RequestShed:
            return name  # a policy may
        except RequestError:
            limits = self.engine.scheduler.limits
            assert length > limits.pool_tokens
            return name
        self.requests[name] = request
        return name

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @rule(name=consumes(ids))
    def abort(self, name: str) -> None:
        self.engine.abort_request(name)

    @precondition(lambda self: bool(self.requests))
    @rule(name=consumes(ids), num_tokens=st.integers(0, 10))
    def truncate(self, name: str, num_tokens: int) -> None:
        if self.engine.finish_request(name, num_tokens, FinishReason.STOP):
            self.kept[name] = num_tokens

    @rule()
    def duplicate(self) -> None:
        for name in self.requests:
            if self.engine.scheduler.has_request(name):
                with pytest.raises(RequestError, match="unique"):
                    self.engine.add_request(self.requests[name])
                return

    @invariant()
    def blocks_add_up(self) -> None:
        if hasattr(self, "engine"):
            check_accounting(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.run.to_end(5_000)
        assert set(self.run.outputs) == set(self.requests)
        for name, output in self.run.outputs.items():
            self.check_output(self.requests[name], output.token_ids.tolist(), output.finish_reason)
        check_idle(self.engine)

    def check_output(self, request: Request, tokens: list[int], reason: FinishReason) -> None:
        sampling = request.sampling
        if sampling.ignore_eos:
            return self.check_ignoring_eos(request, tokens)
        assert sampling.seed is not None
        alone, why = tokens_alone(
            tuple(request.prompt_token_ids), sampling.max_tokens, sampling.seed, self.sim
        )
        assert tokens == alone[: len(tokens)]
        pool = self.engine.scheduler.limits.pool_tokens + 1
        cut = len(request.prompt_token_ids) + len(tokens) == pool
        if request.id in self.kept:
            assert len(tokens) <= self.kept[request.id]
        elif reason not in (FinishReason.ABORT, FinishReason.SHED) and not cut:
            assert (tokens, reason) == (alone, why)
        return None

    def check_ignoring_eos(self, request: Request, tokens: list[int]) -> None:
        assert len(request.prompt_token_ids) + len(tokens) <= MODEL_LENGTH
        assert request.sampling.max_tokens is None or len(tokens) <= request.sampling.max_tokens


def check_accounting(engine: Engine) -> None:
    """Blocks, rows and queue after any event."""
    scheduler = engine.scheduler
    scheduler.allocator.check_integrity()
    stats = scheduler.allocator.stats()
    assert stats.num_free + stats.num_cached + stats.num_used == scheduler.limits.num_blocks
    held = scheduler.num_running + scheduler.running.num_held_rows
    assert held + len(scheduler.rows.free) == scheduler.limits.max_rows
    assert scheduler.num_running + scheduler.num_waiting == scheduler.num_requests
    alive = scheduler.rows.alive
    assert (scheduler.rows.known[alive] <= scheduler.rows.planned[alive]).all()
    assert (scheduler.rows.planned[alive] <= scheduler.rows.limit[alive]).all()


def check_idle(engine: Engine) -> None:
    """Nothing is left of anybody."""
    check_accounting(engine)
    assert engine.scheduler.num_requests == 0
    assert engine.scheduler.running.num_held_rows == 0
    assert engine.scheduler.allocator.stats().num_used == 0


FEW = settings(
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
EngineMachine.TestCase.settings = FEW
TestEngineMachine = EngineMachine.TestCase


@pytest.mark.slow
class TestEngineMachineAtLength(EngineMachine.TestCase):
    settings = settings(FEW, max_examples=300)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fault", Nonsense.FAULTS)
@pytest.mark.parametrize("after", [0, 1, 5])
def test_nonsense_is_named_and_leaks_nothing(
    fault: str, after: int, overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(
        Nonsense(fault, after),
        num_blocks=9,
        block_size=4,
        max_num_seqs=3,
        max_model_len=MODEL_LENGTH,
        overlap=overlap,
    )
    run, refused, error = Run(engine), set[str](), None
    for i in range(12):
        refusal = _add(engine, make_request(f"r{i}", 5 + i, 12, priority=-i, client=f"c{i % 3}"))
        if refusal is not None:
            assert "Nonsense" in refusal.reason
            refused.add(f"r{i}")
        for _ in range(2):
            error = error or _step(run)
    while engine.has_unfinished and error is None:
        error = _step(run)
    if error is not None:
        assert isinstance(error, PolicyError)
        assert "Nonsense" in str(error)
    ends = [*run.outputs.values(), *engine.take_finished()]
    blamed = [end for end in ends if end.finish_reason is FinishReason.ERROR]
    assert all("Nonsense" in str(end.error) for end in blamed)
    logged = [record.getMessage() for record in caplog.records]
    if fault == "finish_raises":  # the request has its result
        assert any("Nonsense: on_finish() raised" in message for message in logged)
    else:
        assert refused or error or blamed
    check_accounting(engine) if error is None else engine.scheduler.allocator.check_integrity()
    live = {f"r{i}" for i in range(12) if engine.scheduler.has_request(f"r{i}")}
    finished = {end.id for end in ends}
    assert live | refused | finished == {f"r{i}" for i in range(12)}


def _add(engine: Engine, request: Request) -> RequestError | None:
    try:
        engine.add_request(request)
    except RequestError as error:
        return error
    return None


def _step(run: Run) -> NanofwError | None:
    try:
        run.step()
    except NanofwError as error:
        return error
    return None
