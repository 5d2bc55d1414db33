"""Executors over several ranks, and engines that use one of them in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.checkpoints.config import read_checkpoint
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import RealClock
from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.contracts.limits import Limits
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.engine.scheduler import Scheduler
from nanofw.runtime.executor import torch_executor
from nanofw.runtime.options import TorchOptions
from tests.engine.sim_engines import FirstCome, make_allocator
from tests.runtime.driver import component, components_of

MAX_LEN = 128
MAX_TOKENS = 96
MAX_SEQS = 5
BLOCK_SIZE = 8
COMPONENTS: dict[str, Any] = {
    "model": component("model", "Qwen3ForCausalLM", "nanofw.models.qwen3:Qwen3ForCausalLM"),
    "attention_backend": component(
        "attention_backend", "sdpa", "nanofw.attention_backends.sdpa:SdpaBackend"
    ),
    "sampler": component("sampler", "standard", "nanofw.samplers.standard:standard_sampler"),
    "logits_processor": [],
}


def executor_of(
    folder: Path,
    size: int,
    *,
    options: TorchOptions | None = None,
    components: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """Executor `torch` over so many ranks, in float32 on the CPU."""
    values: dict[str, Any] = {
        "spec": spec_of(folder),
        "block_size": BLOCK_SIZE,
        "num_blocks": 128,
        "max_num_seqs": MAX_SEQS,
        "max_num_batched_tokens": MAX_TOKENS,
        "max_model_len": MAX_LEN,
        "clock": RealClock(),
        "tensor_parallel_size": size,
        "components": components_of(COMPONENTS | (components or {})),
    }
    return torch_executor(options, ExecutorConfig(**(values | changes)))


def spec_of(folder: Path) -> ModelSpec:
    return replace(read_checkpoint(folder), dtype="float32", max_model_len=MAX_LEN)


class Lent(Executor):
    """An executor for one engine after another: steps are renumbered, rows emptied first."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._first, self._next, self._pending = 0, 0, 0
        self._rows: set[int] = set()
        self._is_new = True

    def lend(self) -> Lent:
        """For the next engine."""
        while self._pending:
            self.collect()
        self._first, self._is_new = self._next, True
        return self

    def capacity(self) -> Capacity:
        return self._executor.capacity()

    def check(self, request: Request) -> None:
        self._executor.check(request)

    def submit(self, plan: StepPlan) -> None:
        removed: IntArray = plan.removed
        if self._is_new:
            removed = np.array(sorted(self._rows), np.int32)
            self._is_new = False
        self._rows -= set(removed.tolist())
        self._rows |= {new.row for new in plan.new}
        self._executor.submit(replace(plan, step=self._next, removed=removed))
        self._next += 1
        self._pending += 1

    def provide(self, masks: HostMasks) -> None:
        self._executor.provide(replace(masks, step=masks.step + self._first))

    def collect(self) -> StepResult:
        self._pending -= 1
        result = self._executor.collect()
        return replace(result, step=result.step - self._first)

    def close(self) -> None:
        """It belongs to the test."""


def engine_over(
    executor: Any,
    folder: Path,
    *,
    allocator: str = "paged_prefix",
    num_blocks: int = 128,
    overlap: bool = False,
    **limits: Any,
) -> Engine:
    """An engine that plans for the executor."""
    spec = spec_of(folder)
    bounds = Limits(
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=MAX_TOKENS,
        max_model_len=MAX_LEN,
        num_blocks=num_blocks,
        block_size=executor.capacity().block_size,
        **limits,
    )
    scheduler = Scheduler(
        bounds, FirstCome(), make_allocator(allocator, bounds), spec.eos_token_ids
    )
    return Engine(spec=spec, scheduler=scheduler, executor=executor, overlap=overlap)


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]
) -> dict[str, RequestOutput]:
    """All outputs, by the number of the prompt and of the sample."""
    for number, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=list(prompt), sampling=params))
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        for output in engine.step().finished:
            outputs[f"{output.id}.{output.sample_index}"] = output
    return outputs


def tokens_of(outputs: dict[str, RequestOutput]) -> dict[str, list[int]]:
    return {key: output.token_ids.tolist() for key, output in sorted(outputs.items())}


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
