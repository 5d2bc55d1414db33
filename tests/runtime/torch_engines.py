"""Engines over the torch executor, and the logits that each of their tokens was drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.engine.engine import Engine
from nanofw.engine.plugin_names import PluginNames
from nanofw.engine.request_state import SAMPLE_SEPARATOR
from nanofw.engine.scheduler import Scheduler
from nanofw.samplers.standard import StandardSampler
from tests.engine.sim_engines import FirstCome, make_allocator
from tests.runtime.driver import component, make_executor
from tests.samplers.plain import draw, edited

Key = tuple[str, int]
"""A request's id and the number of the sample."""


class WatchedSampler(StandardSampler):
    """The standard sampler; keeps the logits of each draw by request, sample and position."""

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self.logits: dict[tuple[str, int, int], np.ndarray] = {}
        self._names: dict[int, Key] = {}

    def add_row(self, new: NewRow) -> None:
        super().add_row(new)
        name = new.request_id.partition(SAMPLE_SEPARATOR)[0]
        self._names[new.row] = (name, new.sample_index)

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        for line, (row, position) in enumerate(zip(rows, positions, strict=True)):
            self.logits[(*self._names[int(row)], int(position))] = logits[line].numpy().copy()
        return super().edit(logits, rows, positions)


WATCHED = component("sampler", "watched", "tests.runtime.torch_engines:WatchedSampler")


def torch_engine(
    folder: Path,
    *,
    overlap: bool = False,
    num_blocks: int = 128,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 256,
    processors: Sequence[Any] = (),
    names: Sequence[str] = (),
    **limits: Any,
) -> Engine:
    """An engine over a checkpoint, in float32 on the CPU, with blocks of 4 tokens."""
    executor = make_executor(
        folder,
        block_size=4,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=256,
        components={"sampler": WATCHED, "logits_processor": list(processors)},
    )
    spec = replace(executor._runner._config.spec, max_model_len=256)
    bounds = Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=256,
        num_blocks=num_blocks,
        block_size=4,
        **limits,
    )
    allocator = make_allocator("paged_prefix", bounds)
    return Engine(
        spec=spec,
        scheduler=Scheduler(bounds, FirstCome(), allocator, spec.eos_token_ids),
        executor=executor,
        overlap=overlap,
        names=PluginNames(others=(*names, *(item.name for item in processors))),
    )


@dataclass
class Results:
    """Outputs by request and sample, the counters, and the logits that were drawn from."""

    outputs: dict[Key, RequestOutput]
    stats: dict[str, Any]
    logits: dict[tuple[str, int, int], np.ndarray]

    def tokens(self) -> dict[Key, list[int]]:
        return {key: output.token_ids.tolist() for key, output in self.outputs.items()}


def run(engine: Engine, requests: Iterable[Request], *, one_by_one: bool = False) -> Results:
    """Submit the requests and step to the end; closes the engine."""
    outputs: dict[Key, RequestOutput] = {}
    executor: Any = engine.executor
    sampler = executor._runner.plugins.sampler
    for request in requests:
        engine.add_request(request)
        if one_by_one:
            outputs |= _to_end(engine)
    outputs |= _to_end(engine)
    stats = dict(engine.stats())
    engine.close()
    return Results(outputs, stats, sampler.logits)


def _to_end(engine: Engine) -> dict[Key, RequestOutput]:
    outputs: dict[Key, RequestOutput] = {}
    for _ in range(5000):
        if not engine.has_unfinished:
            return outputs
        for output in engine.step().finished:
            outputs[output.id, output.sample_index] = output
    raise AssertionError("not finished after 5000 steps")


def make_request(name: str, prompt: list[int], **sampling: Any) -> Request:
    fields = {field: sampling.pop(field) for field in ("arguments", "stream") if field in sampling}
    return Request(id=name, prompt_token_ids=prompt, sampling=SamplingParams(**sampling), **fields)


def gap_at(
    results: Results, request: Request, key: Key, step: int, eos: Sequence[int]
) -> tuple[int, float]:
    """What the plain reference draws as output token `step`, and how near it was to another."""
    prompt = list(request.prompt_token_ids)
    output = results.outputs[key].token_ids.tolist()[:step]
    position = len(prompt) + step
    changed = edited(results.logits[(*key, position)], request.sampling, prompt, output, eos)
    seed = request.sampling.seed
    assert seed is not None
    return draw(changed, request.sampling, seed, key[1], position)


def assert_equal_outside_ties(
    expected: Results, found: Results, requests: dict[str, Request], eos: Sequence[int]
) -> None:
    """Tokens agree, request by request, up to a draw that rounding may decide."""
    assert expected.outputs.keys() == found.outputs.keys()
    num_ties = 0
    for key, wanted in expected.tokens().items():
        got = found.tokens()[key]
        if wanted == got:
            assert found.outputs[key].finish_reason == expected.outputs[key].finish_reason
            continue
        pairs = zip(wanted, got, strict=False)
        step = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        assert step is not None, (key, wanted, got)
        _, gap = gap_at(expected, requests[key[0]], key, step, eos)
        assert gap < 1e-5, (key, step, gap, wanted, got)
        num_ties += 1
    assert num_ties <= len(expected.outputs) // 10
