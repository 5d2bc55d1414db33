"""Drives an executor with plans made by hand, and records the logits that it samples from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanofw.checkpoints.config import read_checkpoint
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import RealClock
from nanofw.contracts.executor import Components, ExecutorConfig
from nanofw.contracts.plan import NewRow, StepPlan, StepResult
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SampledTokens, SamplerConfig
from nanofw.models import manifest
from nanofw.plugins import KINDS, Component, Plugin
from nanofw.runtime.executor import TorchExecutor
from nanofw.samplers.standard import StandardSampler

GREEDY = SamplingParams(temperature=0)


class RecordingSampler(StandardSampler):
    """The standard sampler; `script[row]`, when there is one, says which tokens come instead."""

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self.logits: dict[tuple[int, int], torch.Tensor] = {}
        self.script: dict[int, list[int]] = {}

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        for line, (row, position) in enumerate(zip(rows, positions, strict=True)):
            self.logits[int(row), int(position)] = logits[line].clone()
        return super().edit(logits, rows, positions)

    def sample(
        self, logits: torch.Tensor, rows: IntArray, positions: IntArray, **how: bool
    ) -> SampledTokens:
        sampled = super().sample(logits, rows, positions, **how)
        for line, (row, position) in enumerate(zip(rows, positions, strict=True)):
            if int(row) in self.script:
                sampled.token_ids[line] = self.script[int(row)][position]
        return sampled


def component(kind: str, name: str, target: str, **facts: Any) -> Component:
    return Component(plugin=Plugin(name, target, api=KINDS[kind].api), **facts)


COMPONENTS = {
    "attention_backend": component(
        "attention_backend", "sdpa", "nanofw.attention_backends.sdpa:SdpaBackend"
    ),
    "sampler": component("sampler", "recording", "tests.runtime.driver:RecordingSampler"),
    "logits_processor": [],
}


MODELS = {plugin.name: Component(plugin=plugin) for plugin in manifest.model()}


def make_executor(folder: Path, **changes: Any) -> TorchExecutor:
    """An executor over a checkpoint folder; see `executor_config`."""
    return TorchExecutor(None, executor_config(folder, **changes))


def executor_config(
    folder: Path, *, dtype: str = "float32", ranks: int = 1, spec: Any = None, **changes: Any
) -> ExecutorConfig:
    """What an executor over a checkpoint folder is built with.

    Args:
        spec: the model's description; None: as the core reads it.
    """
    spec = replace(spec or read_checkpoint(folder), dtype=dtype)
    values: dict[str, Any] = {
        "spec": spec,
        "block_size": 16,
        "num_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": spec.default_model_len,
        "clock": RealClock(),
        "tensor_parallel_size": ranks,
    }
    chosen = COMPONENTS | changes.pop("components", {})
    if "model" not in chosen:
        chosen["model"] = MODELS[spec.architecture]
    return ExecutorConfig(**(values | changes), components=components_of(chosen))


def components_of(by_kind: dict[str, Any]) -> Components:
    """What an executor makes itself; the logits processors are a list."""
    processors = by_kind.get("logits_processor", ())
    others = {kind: item for kind, item in by_kind.items() if kind != "logits_processor"}
    return Components(**others, logits_processors=tuple(processors))


@dataclass
class Sequence:
    """A request as the driver sees it. `tokens` are those that the executor was told."""

    row: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    blocks: list[int]
    computed: int = 0
    outputs: list[int] = field(default_factory=list)
    failed: bool = False

    @property
    def known(self) -> int:
        return len(self.tokens) + len(self.outputs)


class Driver:
    """Keeps tables and lengths as a scheduler would, with blocks at random places."""

    def __init__(self, executor: TorchExecutor, *, seed: int = 0) -> None:
        self.executor = executor
        capacity = executor.capacity()
        self.block_size = capacity.block_size
        self._free = list(np.random.default_rng(seed).permutation(capacity.num_blocks))
        self._step = 0
        self._new: list[NewRow] = []
        self._removed: list[int] = []
        self._copies: list[tuple[int, int]] = []
        self._in_flight: list[list[Sequence]] = []
        self.sampler: Any = executor._runner.plugins.sampler

    def add(
        self,
        row: int,
        tokens: list[int],
        *,
        num_prompt_tokens: int | None = None,
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
        prefix_of: Sequence | None = None,
        cached: int = 0,
        arguments: dict[str, Any] | None = None,
    ) -> Sequence:
        """A row that enters with the next step, its first `cached` tokens in another's blocks."""
        shared = prefix_of.blocks[: cached // self.block_size] if prefix_of else []
        assert cached % self.block_size == 0
        needed = -(-len(tokens) // self.block_size) - len(shared)
        blocks = [*shared, *(int(self._free.pop()) for _ in range(needed))]
        sequence = Sequence(
            row, list(tokens), num_prompt_tokens or len(tokens), sampling, blocks, cached
        )
        self._new.append(
            NewRow(
                row=row,
                request_id=f"r{row}",
                token_ids=np.array(tokens, np.int32),
                num_prompt_tokens=sequence.num_prompt_tokens,
                block_ids=np.array(blocks, np.int32),
                sampling=sampling,
                seed=seed,
                arguments=arguments or {},
            )
        )
        return sequence

    def remove(self, sequence: Sequence, *, free: bool = True) -> None:
        """The row leaves with the next step; one that has not entered yet never does."""
        if any(new.row == sequence.row for new in self._new):
            self._new = [new for new in self._new if new.row != sequence.row]
        else:
            self._removed.append(sequence.row)
        if free:
            self._free[:0] = sequence.blocks

    def copy(self, source: int, target: int) -> None:
        self._copies.append((source, target))

    def take_block(self) -> int:
        return int(self._free.pop())

    def plan(
        self, work: list[tuple[Sequence, int]], *, host: list[Sequence] | None = None
    ) -> StepPlan:
        """The next plan: compute so many more tokens of each sequence."""
        entered = {new.row for new in self._new}
        assert len(entered) == len(self._new), "a row enters once in a plan"
        appended: list[tuple[int, int, int]] = []
        for sequence, num_tokens in work:
            end = sequence.computed + num_tokens
            assert end <= sequence.known, "a token that nobody knows yet"
            while len(sequence.blocks) * self.block_size < end:
                block = self.take_block()
                appended.append((sequence.row, len(sequence.blocks), block))
                sequence.blocks.append(block)
                assert sequence.row not in entered or len(sequence.tokens) < end
        is_decode = [s.computed >= s.num_prompt_tokens and n == 1 for s, n in work]
        order = sorted(range(len(work)), key=lambda i: not is_decode[i])
        work = [work[i] for i in order]
        ends = [s.computed + n for s, n in work]
        columns = np.array(appended, np.int32).reshape(-1, 3).T
        plan = StepPlan(
            step=self._step,
            rows=np.array([s.row for s, _ in work], np.int32),
            num_tokens=np.array([n for _, n in work], np.int32),
            starts=np.array([s.computed for s, _ in work], np.int32),
            samples=np.array(
                [e == s.known for (s, _), e in zip(work, ends, strict=True)], np.bool_
            ),
            num_decodes=sum(is_decode),
            new=self._new,
            removed=np.array(self._removed, np.int32),
            block_rows=columns[0],
            block_positions=columns[1],
            block_ids=columns[2],
            copies=np.array(self._copies, np.int32).reshape(-1, 2),
            host_rows=np.array([s.row for s in host or []], np.int32),
        )
        sampling: list[Sequence] = []
        for (sequence, num_tokens), does in zip(work, plan.samples, strict=True):
            sequence.computed += num_tokens
            if does:
                sequence.outputs.append(-1)  # known to the executor only
                sampling.append(sequence)
        self._in_flight.append(sampling)
        self._step += 1
        self._new, self._removed, self._copies = [], [], []
        return plan

    def submit(self, work: list[tuple[Sequence, int]]) -> None:
        self.executor.submit(self.plan(work))

    def collect(self) -> StepResult:
        """Collect a step and fill in the tokens that it drew."""
        result = self.executor.collect()
        sampling = self._in_flight.pop(0)
        assert len(result.token_ids) == len(sampling)
        for line, sequence in enumerate(sampling):
            sequence.outputs[sequence.outputs.index(-1)] = int(result.token_ids[line])
            if result.failed is not None and result.failed[line]:
                sequence.failed = True
        return result

    def step(self, work: list[tuple[Sequence, int]]) -> StepResult:
        self.submit(work)
        return self.collect()

    def prefill(self, sequence: Sequence, *chunks: int) -> None:
        """Compute the prompt, in the given chunks and then the rest."""
        for chunk in chunks:
            self.step([(sequence, chunk)])
        self.step([(sequence, sequence.known - sequence.computed)])

    def decode(self, *sequences: Sequence, steps: int) -> None:
        for _ in range(steps):
            self.step([(sequence, 1) for sequence in sequences])
