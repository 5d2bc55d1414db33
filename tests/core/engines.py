"""Engines over the simulated executor, for tests of the core."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from nanofw.core.clock import VirtualClock
from nanofw.core.contracts.executor import ExecutorConfig
from nanofw.core.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.core.contracts.policy import Policy, RequestView
from nanofw.core.engine import Engine
from nanofw.core.host import HostProcessors
from nanofw.core.model_spec import ModelSpec
from nanofw.core.scheduler import Limits, Scheduler
from nanofw.core.types import Request, RequestOutput, SamplingParams, StepReport, TokenDelta
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions

VOCAB = 64
EOS = 63
SPEC = ModelSpec(
    architecture="SimForCausalLM",
    path="sim",
    dtype="float32",
    vocab_size=VOCAB,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    max_model_len=256,
    eos_token_ids=(EOS,),
)
ALLOCATORS: dict[str, Any] = {"paged": PagedAllocator, "paged_prefix": PagedPrefixAllocator}


class FirstCome(Policy):
    """The plainest policy."""

    def key(self, request: RequestView, now: float) -> float:
        return request.arrival


def make_engine(
    policy: Policy | None = None,
    *,
    allocator: str = "paged_prefix",
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    max_model_len: int = 64,
    overlap: bool = False,
    seed: int = 0,
    host_processors: HostProcessors | None = None,
    spec: ModelSpec = SPEC,
    sim: dict[str, Any] | None = None,
    **limits: Any,
) -> Engine:
    """An engine whose executor checks every plan and draws tokens from the context it reads."""
    clock = VirtualClock()
    bounds = Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=block_size,
        **limits,
    )
    config = ExecutorConfig(
        spec=replace(spec, max_model_len=max_model_len),
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=bounds.max_rows,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        clock=clock,
        engine=None,
        components={},
    )
    options = SimOptions(**{"check_context": True, "max_in_flight": 2, **(sim or {})})
    return Engine(
        spec=config.spec,
        scheduler=Scheduler(
            bounds, policy or FirstCome(), make_allocator(allocator, bounds), spec.eos_token_ids
        ),
        executor=SimExecutor(options, config),
        clock=clock,
        overlap=overlap,
        seed=seed,
        host_processors=host_processors,
    )


def make_allocator(name: str, limits: Limits) -> KVAllocator:
    config = AllocatorConfig(
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_rows,
        max_blocks_per_row=-(-limits.max_model_len // limits.block_size) + 1,
    )
    return ALLOCATORS[name](None, config)


def make_request(
    request_id: str, prompt: list[int] | int, max_tokens: int | None = 8, **fields: Any
) -> Request:
    """A request; a prompt given as a number is that many tokens made from the id."""
    if isinstance(prompt, int):
        generator = np.random.default_rng(zlib.crc32(request_id.encode()))
        prompt = generator.integers(0, EOS, prompt).tolist()
    names = SamplingParams.__dataclass_fields__
    sampling = SamplingParams(
        max_tokens=max_tokens, **{k: fields.pop(k) for k in list(fields) if k in names}
    )
    return Request(id=request_id, prompt_token_ids=prompt, sampling=sampling, **fields)


class Run:
    """Everything that an engine's steps brought."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, RequestOutput] = {}
        self.reports: list[StepReport] = []
        self.deltas: list[TokenDelta] = []

    def step(self) -> None:
        output = self.engine.step()
        for finished in output.finished:
            assert finished.id not in self.outputs, f"{finished.id} finished twice"
            self.outputs[finished.id] = finished
        self.deltas += output.deltas
        if output.report is not None:
            self.reports.append(output.report)

    def to_end(self, max_steps: int = 10_000) -> Run:
        for _ in range(max_steps):
            if not self.engine.has_unfinished:
                return self
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def collect(self, max_steps: int = 1000) -> list[RequestOutput]:
        """Step to the end; all outputs, several samples of one request too."""
        outputs: list[RequestOutput] = []
        for _ in range(max_steps):
            if not self.engine.has_unfinished:
                return outputs
            outputs += self.engine.step().finished
        raise AssertionError(f"not finished after {max_steps} steps")

    def tokens(self) -> dict[str, list[int]]:
        return {key: output.token_ids.tolist() for key, output in self.outputs.items()}


def run(engine: Engine, *requests: Request) -> Run:
    """Submit the requests and step to the end."""
    for request in requests:
        engine.add(request)
    return Run(engine).to_end()
