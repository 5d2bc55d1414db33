"""Engines over the simulated executor, for tests of the core."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.outputs import RequestOutput, StepReport, TokenDelta
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerView
from nanofw.engine.engine import Engine
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.plugin_names import PluginNames
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.testing.sim_engine import (
    END_TOKEN,
    SPEC,
    VOCAB_SIZE,
    EngineShape,
    simulated_engine,
)

VOCAB, EOS = VOCAB_SIZE, END_TOKEN
ALLOCATORS: dict[str, Any] = {"paged": PagedAllocator, "paged_prefix": PagedPrefixAllocator}


class FirstCome(Policy):
    """The plainest policy."""

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival


def make_engine(
    policy: Policy | None = None,
    *,
    allocator: str = "paged_prefix",
    seed: int = 0,
    host_processors: HostProcessors | None = None,
    spec: ModelSpec = SPEC,
    sim: dict[str, Any] | None = None,
    policy_name: str = "",
    model_name: str = "",
    **shape: Any,
) -> Engine:
    """An engine whose executor checks every plan and draws tokens from the context it reads."""
    sizes = EngineShape(prefix_cache=allocator == "paged_prefix", **shape)
    return simulated_engine(
        policy or FirstCome(),
        sizes,
        spec=spec,
        seed=seed,
        host_processors=host_processors,
        names=PluginNames(policy=policy_name, model=model_name),
        **{"eos_probability": 0.0, **(sim or {})},
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
        token_ids: list[int] = generator.integers(0, EOS, prompt).tolist()
    else:
        token_ids = prompt
    names = SamplingParams.__dataclass_fields__
    sampling = SamplingParams(
        max_tokens=max_tokens, **{k: fields.pop(k) for k in list(fields) if k in names}
    )
    return Request(id=request_id, prompt_token_ids=token_ids, sampling=sampling, **fields)


class Run:
    """Everything that an engine's steps brought."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, RequestOutput] = {}
        self.reports: list[StepReport] = []
        self.deltas: list[TokenDelta] = []

    def step(self) -> None:
        output = self.engine.step()
        if output.wake_at is not None:
            self.engine.clock.wait_until(output.wake_at)
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
        engine.add_request(request)
    return Run(engine).to_end()
