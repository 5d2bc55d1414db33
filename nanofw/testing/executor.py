"""What every executor must keep, driven by the engine with plans of all kinds."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from nanofw.assembly import select
from nanofw.assembly.build import executor_config
from nanofw.config.load import load_config
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import Clock, RealClock, VirtualClock
from nanofw.contracts.executor import Components, Executor, ExecutorConfig
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import Capacity, NewRow, StepPlan, StepResult
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.scheduler import Scheduler
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.narrowing import Claims
from nanofw.plugins.capabilities import BUILT_BY_EXECUTOR
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.memory import reachable_bytes
from nanofw.testing.scheduler import InOrder
from nanofw.testing.sim_engine import SPEC, EngineShape
from nanofw.testing.traffic import Record, Traffic, random_traffic, serve, steps

ROOM = EngineShape(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=64)
SHAPES = (
    EngineShape(num_blocks=12, max_num_seqs=3),
    EngineShape(num_blocks=40, max_num_seqs=1),
    EngineShape(num_blocks=30, max_num_seqs=8, max_num_batched_tokens=5, chunk_tokens=3),
    EngineShape(num_blocks=16, max_num_seqs=6, prefill_first=True),
)
ALLOWED = (3, 5, 8)
PROMPT = (5, 6, 7)


class ExecutorChecks(ABC):
    """Checks of one executor; each `test_` method is one. Subclass it under pytest.

        class TestMyExecutor(ExecutorChecks):
            capabilities = {"needs": (), "virtual_time": True}

            def make(self, config):
                return MyExecutor(MyOptions(), config)

    The engine sends the executor the plans of small runs: rows that come, go and return in other
    blocks, chunks of prompts, shared prefixes, steps in flight. A token must depend on its request
    alone. What it makes itself (`needs`) are the model `embedded:demo` in float32, and nanofw's own
    attention and sampler.

    Attributes:
        capabilities: what the manifest claims: `needs`, `virtual_time`.
        device: where to run.
        seeds: random traffics to serve.
        kept_bytes_per_request: how much the executor may remember of each finished request.
    """

    capabilities: ClassVar[Claims] = {}
    device: str = "cpu"
    seeds: ClassVar[range] = range(2)
    kept_bytes_per_request: ClassVar[int] = 64

    @abstractmethod
    def make(self, config: ExecutorConfig) -> Executor:
        """A fresh executor."""

    def config(self, shape: EngineShape, clock: Clock) -> ExecutorConfig:
        """What an executor of that shape is made with."""
        spec, components = self._parts()
        spec = replace(spec, max_model_len=shape.max_model_len)
        made = shape.executor_config(spec, clock)
        return replace(made, components=components, device=self.device, name="executor")

    @contextmanager
    def engine(
        self, shape: EngineShape, host_processors: HostProcessors | None = None
    ) -> Generator[Engine]:
        """An engine of that shape with a fresh executor, which is closed at the end."""
        clock = VirtualClock() if self.capabilities.get("virtual_time") else RealClock()
        config = self.config(shape, clock)
        executor = self.make(config)
        try:
            scheduler = Scheduler(
                shape.limits(),
                InOrder(),
                PagedPrefixAllocator(None, shape.allocator_config()),
                config.spec.eos_token_ids,
            )
            yield Engine(
                spec=config.spec,
                scheduler=scheduler,
                executor=executor,
                clock=clock,
                overlap=shape.overlap,
                host_processors=host_processors,
            )
        finally:
            executor.close()

    def test_it_keeps_the_form_of_the_contract(self) -> None:
        """It derives from `Executor`, its methods are those of the contract, it can be closed."""
        executor = self.make(self.config(ROOM, VirtualClock()))
        what = type(executor).__name__
        assert isinstance(executor, Executor), f"{what} must derive from Executor"
        problems = hook_problems(type(executor), Executor)
        assert not problems, "; ".join(problems)
        executor.close()
        executor.close()

    def test_the_capacity_is_what_was_asked_for(self) -> None:
        """As many blocks as the configuration names, of its size, each time it is asked."""
        with self.engine(SHAPES[0]) as engine:
            found = [engine.executor.capacity() for _ in "ab"]
        assert isinstance(found[0], Capacity), f"capacity() returned {found[0]!r}, not a Capacity"
        assert found[0] == found[1], f"capacity() returned {found[0]}, then {found[1]}"
        size = found[0].num_blocks, found[0].block_size
        assert size == (SHAPES[0].num_blocks, SHAPES[0].block_size), (
            f"capacity() returned {found[0]}; {SHAPES[0].num_blocks} blocks of "
            f"{SHAPES[0].block_size} tokens were asked for"
        )

    def test_tokens_depend_on_the_request_alone(self) -> None:
        """Whatever steps a request is computed in, and whichever requests are beside it."""
        for seed in self.seeds:
            traffic = self._traffic(seed)
            with self.engine(ROOM) as engine:
                expected = serve(engine, traffic).tokens()
            self._check_ids(expected)
            for shape in SHAPES:
                with self.engine(shape) as engine:
                    found = serve(engine, traffic).tokens()
                self._check_equal(expected, found, traffic, str(shape))

    def test_seeds_and_samples_are_told_apart(self) -> None:
        """Requests of one prompt with other seeds, and samples of one request, get other tokens."""
        with self.engine(ROOM) as engine:
            if not self._takes(engine, _asked()):
                raise SkipTest("it refuses a request with a temperature")
            seeds = self._outputs(engine, [_asked(seed) for seed in range(8)])
        assert len(set(seeds)) > 1, f"8 seeds gave the same tokens, {seeds[0]}"
        with self.engine(ROOM) as engine:
            if self._takes(engine, _asked(n=4)):
                found = self._outputs(engine, [_asked(n=4)])
                assert len(set(found)) > 1, f"the 4 samples of a request are {found[0]}"

    def test_virtual_time_goes_on(self) -> None:
        """Where `virtual_time` is claimed: the clock moves by what the steps are said to take."""
        if not self.capabilities.get("virtual_time"):
            raise SkipTest("virtual_time is not claimed")
        watch = _Watch()
        with self.engine(ROOM) as engine, engine.observed_by(watch):
            start = engine.clock.now()
            serve(engine, self._traffic(1, num_requests=4))
            moved = engine.clock.now() - start
        assert watch.longest <= moved * (1 + 1e-9), (
            f"a step took {watch.longest:g} s, and the engine's clock moved by {moved:g} s in all"
        )

    def test_it_takes_as_many_steps_as_it_says(self) -> None:
        """`max_in_flight` steps are submitted before the first is collected, and come in order."""
        with self.engine(ROOM) as engine:
            executor, size = engine.executor, ROOM.block_size
            count = executor.capacity().max_in_flight
            blocks = np.arange(-(-(len(PROMPT) + count) // size), dtype=np.int32)
            for step in range(count):
                executor.submit(_plan(step, blocks))
            found = [executor.collect().step for _ in range(count)]
        assert found == list(range(count)), f"steps were collected in the order {found}"

    def _takes(self, engine: Engine, request: Request) -> bool:
        """Whether `check` lets the request pass."""
        try:
            engine.executor.check(request)
        except ValueError:
            return False
        return True

    def _outputs(self, engine: Engine, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """The tokens of all requests and samples."""
        for request in requests:
            engine.add_request(request)
        found: list[tuple[int, ...]] = []
        while engine.has_unfinished:
            found += [tuple(output.token_ids.tolist()) for output in engine.step().finished]
        return found

    def test_a_step_in_flight(self) -> None:
        """With two steps at once, where `max_in_flight` allows it, tokens are the same."""
        with self.engine(ROOM) as engine:
            if engine.executor.capacity().max_in_flight < 2:
                raise SkipTest("it takes one step at a time")
        traffic = self._traffic(3)
        with self.engine(ROOM) as engine:
            expected = serve(engine, traffic).tokens()
        for shape in SHAPES[:3]:
            with self.engine(replace(shape, overlap=True)) as engine:
                found = serve(engine, traffic).tokens()
            self._check_equal(expected, found, traffic, f"a step in flight, {shape}")

    def test_two_executors_share_nothing(self) -> None:
        """Two in one process, each in the middle of the other's run."""
        traffics, records = (self._traffic(5), self._traffic(6)), (Record(), Record())
        alone: list[dict[str, list[int]]] = []
        for traffic in traffics:
            with self.engine(SHAPES[0]) as engine:
                alone.append(serve(engine, traffic).tokens())
        with self.engine(SHAPES[0]) as first, self.engine(SHAPES[0]) as second:
            before = class_state(type(first.executor))
            runs = [
                steps(engine, traffic, record)
                for engine, traffic, record in zip((first, second), traffics, records, strict=True)
            ]
            for _ in itertools.zip_longest(*runs):
                pass
            check_class_state(before, type(first.executor))
        for expected, record, traffic in zip(alone, records, traffics, strict=True):
            self._check_equal(expected, record.tokens(), traffic, "another executor beside it")

    def test_masks_of_the_host_are_kept(self) -> None:
        """Where it writes `provide`: rows with a mask sample allowed tokens, others as ever."""
        with self.engine(ROOM) as engine:
            if type(engine.executor).provide is Executor.provide:
                raise SkipTest("it does not sample among tokens of a mask")
        with self.engine(SHAPES[1], self._only_some()) as engine:
            record = serve(engine, self._traffic(7, num_requests=8))
        for request_id, tokens in record.tokens().items():
            wrong = sorted(set(tokens) - set(ALLOWED))
            assert not wrong, f"request {request_id!r} has the tokens {wrong}, which were forbidden"

    def test_requests_that_it_cannot_carry_out_are_refused(self) -> None:
        """`check` raises ValueError with a reason, or nothing."""
        with self.engine(ROOM) as engine:
            for sampling in (
                SamplingParams(max_tokens=2),
                SamplingParams(max_tokens=2, temperature=0),
                SamplingParams(max_tokens=2, logprobs=2),
                SamplingParams(max_tokens=2, top_p=0.5, presence_penalty=1.0),
            ):
                request = Request(id="asked", prompt_token_ids=[1, 2, 3], sampling=sampling)
                reason = "nothing is wrong"
                try:
                    engine.executor.check(request)
                except ValueError as error:
                    reason = str(error)
                assert reason, f"check refuses {sampling} without a reason"

    def test_finished_requests_are_forgotten(self) -> None:
        """What an executor keeps does not grow with the number of requests that it has seen."""
        sizes, num_requests = list[int](), 10
        with self.engine(SHAPES[0]) as engine:
            for round_ in range(6):
                serve(engine, self._traffic(round_, num_requests, prefix=f"{round_}:"))
                sizes.append(reachable_bytes(engine.executor))
        grown = sizes[-1] - sizes[2]
        assert grown <= 3 * num_requests * self.kept_bytes_per_request, (
            f"after {3 * num_requests} more requests the executor keeps {grown} bytes more"
        )

    def _traffic(self, seed: int, num_requests: int = 10, prefix: str = "") -> Traffic:
        """All at once, so that a clock that runs by itself changes nothing."""
        return random_traffic(
            seed, num_requests, steps_between_arrivals=0, abort_share=0.1, prefix=prefix
        )

    def _parts(self) -> tuple[ModelSpec, Components]:
        """The model, and the components that the executor makes itself."""
        if "model" not in self.capabilities.get("needs", BUILT_BY_EXECUTOR):
            return SPEC, Components()
        words = ["model.dtype=float32", f"engine.device={self.device}", "engine.cuda_graphs=false"]
        words += ["executor.name=torch", "kv_allocator.block_size=4"]
        selection = select(load_config("qwen3-demo", words))
        return selection.spec, executor_config(selection, RealClock()).components

    def _only_some(self) -> HostProcessors:
        spec, _ = self._parts()
        config = HostProcessorConfig(
            vocab_size=spec.vocab_size, eos_token_ids=(), tokenizer_path=None
        )
        return HostProcessors({"only_some": _OnlySome(None, config)}, spec.vocab_size)

    def _check_ids(self, tokens: Mapping[str, list[int]]) -> None:
        spec, _ = self._parts()
        for request_id, found in tokens.items():
            wrong = [token for token in found if not 0 <= token < spec.vocab_size]
            assert not wrong, (
                f"request {request_id!r} has the tokens {wrong}; the vocabulary has "
                f"{spec.vocab_size}"
            )

    def _check_equal(
        self,
        expected: Mapping[str, list[int]],
        found: Mapping[str, list[int]],
        traffic: Traffic,
        how: str,
    ) -> None:
        for request_id, tokens in found.items():
            whole = expected[request_id]
            if request_id in traffic.aborts:  # it may have come further in either
                count = min(len(whole), len(tokens))
                whole, tokens = whole[:count], tokens[:count]
            assert tokens == whole, (
                f"request {request_id!r} got {tokens}, and {whole} with room for everybody; {how}"
            )


def _asked(seed: int = 1, n: int = 1) -> Request:
    """A request whose tokens are random."""
    sampling = SamplingParams(max_tokens=8, seed=seed, n=n, ignore_eos=True)
    return Request(id=f"seed {seed}, n {n}", prompt_token_ids=PROMPT, sampling=sampling)


def _plan(step: int, blocks: IntArray) -> StepPlan:
    """Of a request that is alone: its prompt in step 0, then a token in each step."""
    new = NewRow(
        row=0,
        request_id="alone",
        token_ids=np.array(PROMPT, np.int32),
        num_prompt_tokens=len(PROMPT),
        block_ids=blocks,
        sampling=SamplingParams(),
        seed=1,
    )
    length = len(PROMPT)
    return StepPlan(
        step=step,
        rows=np.zeros(1, np.int32),
        num_tokens=np.array([1 if step else length], np.int32),
        starts=np.array([length + step - 1 if step else 0], np.int32),
        samples=np.ones(1, np.bool_),
        num_decodes=1 if step else 0,
        new=() if step else (new,),
        same_rows=step > 1,
    )


class _Watch(StepObserver):
    """Knows the longest time of a step."""

    longest: float = 0.0

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self.longest = max(self.longest, result.seconds or 0.0)


class _OnlySome(HostProcessor):
    """Allows a few tokens."""

    def mask(self, request_id: str, bits: IntArray) -> None:
        allowed = sum(1 << token for token in ALLOWED)
        bits[0] &= allowed
        bits[1:] = 0
