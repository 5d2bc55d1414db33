"""Microseconds of host work per decode step: plan and commit, with many requests waiting.

    python benchmarks/host_overhead/bench.py [--running 256] [--waiting 100,10000]
        [--steps 1000] [--policies fcfs,shortest_job_first] [--json FILE]

The scheduler and the allocator are those of a real run; the device is left out: each plan is
answered at once with tokens from a table. Prompts differ in length, so that in each step some
rows cross the border of a block. `plan_us`, `commit_us` and `total_us` are medians over the
steps; `allocator_us` is the part of both that is spent in the allocator.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nanofw.assembly.provenance import commit, machine
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.scheduler import Policy
from nanofw.engine.request_state import RequestState
from nanofw.engine.scheduler import Scheduler
from nanofw.plugins.component import load_plugin
from nanofw.plugins.descriptor import Plugin, load_target
from nanofw.plugins.registry import build_registry

PROMPT, OUTPUT, BLOCK, CLIENTS = 128, 4096, 16, 50


class Timed:
    """An allocator that adds up the seconds spent in `extend` and `commit`."""

    def __init__(self, allocator: KVAllocator) -> None:
        self._allocator = allocator
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def extend(self, *args: Any) -> Any:
        return self._timed(self._allocator.extend, *args)

    def commit(self, *args: Any) -> Any:
        return self._timed(self._allocator.commit, *args)

    def _timed(self, method: Any, *args: Any) -> Any:
        start = time.perf_counter()
        answer = method(*args)
        self.seconds += time.perf_counter() - start
        return answer


def descriptor(kind: str, name: str) -> Plugin:
    return load_plugin(build_registry().find(kind, name))


def options_of(plugin: Plugin) -> Any:
    model = plugin.options
    return (load_target(model) if isinstance(model, str) else model)() if model else None


def make_scheduler(policy: str, allocator: str, num_running: int) -> Scheduler:
    """A scheduler with room for `num_running` rows and no more."""
    blocks_per_row = -(-(PROMPT + OUTPUT) // BLOCK) + 1
    limits = Limits(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * PROMPT,
        max_model_len=PROMPT + OUTPUT,
        num_blocks=num_running * blocks_per_row,
        block_size=BLOCK,
    )
    config = AllocatorConfig(
        num_blocks=limits.num_blocks,
        block_size=BLOCK,
        max_num_seqs=num_running,
        max_blocks_per_row=blocks_per_row,
    )
    blocks = descriptor("kv_allocator", allocator)
    timed: Any = Timed(load_target(blocks.target)(options_of(blocks), config))
    return Scheduler(limits, make_policy(policy), timed, eos_token_ids=(1,))


def make_policy(name: str) -> Policy:
    plugin = descriptor("scheduler", name)
    options = options_of(plugin)
    target = load_target(plugin.target)
    return target() if options is None else target(options)


def add_requests(scheduler: Scheduler, count: int, first: int = 0) -> None:
    generator = np.random.default_rng(first)
    for index in range(first, first + count):
        # Lengths differ, so that each step has some rows at the border of a block.
        length = int(generator.integers(PROMPT // 2, PROMPT + 1))
        tokens = generator.integers(2, 30_000, length).astype(np.int32)
        sampling = SamplingParams(max_tokens=OUTPUT)
        request = Request(
            id=str(index),
            prompt_token_ids=tokens,
            sampling=sampling,
            client=f"client{index % CLIENTS}",
            priority=0 if first == 0 else 1,  # the waiting ones do not outrank the running
            deadline=1e6 + index,
        )
        state = RequestState(
            request, tokens, index=index, arrival=float(index), limit=length + OUTPUT, seed=index
        )
        scheduler.add_request([state], float(index))


def one_step(scheduler: Scheduler, tokens: np.ndarray, now: float) -> tuple[float, float, StepPlan]:
    """Seconds of plan and of commit."""
    start = time.perf_counter()
    plan = scheduler.plan_step(now, in_flight=False)
    planned = time.perf_counter()
    assert isinstance(plan, StepPlan)
    result = StepResult(step=plan.step, token_ids=tokens[: len(plan.sampled_rows)])
    before_commit = time.perf_counter()
    scheduler.commit_step(plan, result, now)
    return planned - start, time.perf_counter() - before_commit, plan


def measure(policy: str, allocator: str, running: int, waiting: int, steps: int) -> dict[str, Any]:
    """Microseconds per decode step with `running` rows and `waiting` requests in the queue."""
    scheduler = make_scheduler(policy, allocator, running)
    tokens = np.random.default_rng(0).integers(2, 30_000, running).astype(np.int32)
    add_requests(scheduler, running)
    while scheduler.num_waiting:
        one_step(scheduler, tokens, 0.0)
    add_requests(scheduler, waiting, first=running)
    for i in range(50):
        one_step(scheduler, tokens, float(i))
    rows = []
    timed: Any = scheduler.allocator.plugin
    for i in range(steps):
        timed.seconds = 0.0
        plan_s, commit_s, plan = one_step(scheduler, tokens, 100.0 + i)
        assert plan.num_decodes == running
        rows.append((plan_s, commit_s, timed.seconds))
    plan_us, commit_us, allocator_us = np.median(np.array(rows) * 1e6, axis=0)
    totals = np.array(rows)[:, :2].sum(axis=1) * 1e6
    return {
        "policy": policy,
        "allocator": allocator,
        "running": running,
        "waiting": waiting,
        "plan_us": round(float(plan_us), 1),
        "commit_us": round(float(commit_us), 1),
        "allocator_us": round(float(allocator_us), 1),
        "mean_us": round(float(totals.mean()), 1),
        "total_us": round(float(np.median(totals)), 1),
        "p99_us": round(float(np.percentile(totals, 99)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", default="100,10000")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--policies", default="")
    parser.add_argument("--allocators", default="paged,paged_prefix")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    policies = arguments.policies.split(",") if arguments.policies else None
    names = policies or build_registry().names("scheduler")
    results: list[dict[str, Any]] = []
    record = {
        "benchmark": "host_overhead",
        "command": " ".join(["python benchmarks/host_overhead/bench.py", *sys.argv[1:]]),
        "commit": commit(), "machine": machine(), "steps": arguments.steps, "results": results,
    }  # fmt: skip
    allocators, waiting = arguments.allocators.split(","), arguments.waiting.split(",")
    for policy, allocator, count in itertools.product(names, allocators, waiting):
        line = measure(policy, allocator, arguments.running, int(count), arguments.steps)
        results.append(line)
        if arguments.json:  # an abort loses nothing
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    table = Table(*results[0], title="Host work per decode step (microseconds)")
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
