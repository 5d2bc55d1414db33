"""The real and the simulated executor decide alike when their steps take equally long."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from nanofw.assembly import build, build_workload, select
from nanofw.config.load import load_config
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.executor import Executor
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.measure.drive import drive

STEP, TOKEN = 0.01, 0.001


class Timed(Executor):
    """Notes the plans of another executor and, unless it simulates, books a constant cost."""

    def __init__(self, inner: Executor, clock: VirtualClock, simulates: bool) -> None:
        self._inner, self._clock, self._simulates = inner, clock, simulates
        self._busy_until = 0.0
        self._done: deque[float] = deque()
        self.plans: list[Any] = []

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(
            (
                self._clock.now(), plan.rows.tolist(), plan.num_tokens.tolist(),
                plan.starts.tolist(), plan.samples.tolist(), plan.num_decodes,
                [new.request_id for new in plan.new], plan.removed.tolist(),
                plan.block_ids.tolist(),
            )
        )  # fmt: skip
        seconds = STEP + TOKEN * plan.total_tokens
        self._busy_until = max(self._busy_until, self._clock.now()) + seconds
        self._done.append(self._busy_until)
        self._inner.submit(plan)

    def collect(self) -> StepResult:
        result = self._inner.collect()
        done = self._done.popleft()
        if not self._simulates:
            self._clock.wait_until(done)
        return result

    def capacity(self) -> Capacity:
        return self._inner.capacity()

    def check(self, request: Request) -> None:
        self._inner.check(request)

    def provide(self, masks: HostMasks) -> None:
        self._inner.provide(masks)

    def close(self) -> None:
        self._inner.close()


def decisions(executor: str, policy: str, overlap: bool) -> list[Any]:
    options: dict[str, Any] = {"name": executor}
    if executor == "sim":
        options["cost_model"] = {
            "name": "constant", "seconds_per_step": STEP, "seconds_per_token": TOKEN
        }  # fmt: skip
    values = {
        "model": {"path": "embedded:demo", "dtype": "float32"},
        "engine": {
            "device": "cpu", "max_num_seqs": 4, "max_model_len": 96, "overlap": overlap,
            "max_num_batched_tokens": 48,
        },
        "kv_allocator": {"name": "paged_prefix", "block_size": 8, "num_blocks": 14},
        "scheduler": {"name": policy},
        "executor": options,
        "input": {
            "workload": {
                "name": "poisson", "num_requests": 24, "rate": 20.0, "guess_noise": 0.5,
                "prompt": {"distribution": "uniform", "low": 1, "high": 40},
                "output": {"distribution": "uniform", "low": 1, "high": 20},
                "prefix": {"groups": 3, "length": 16}, "clients": {"a": 2, "b": 1},
            }
        },
    }  # fmt: skip
    selection = select(load_config(None, values=values))
    clock = VirtualClock()
    with build(selection, clock=clock) as engine:
        watch = engine.executor = Timed(engine.executor, clock, simulates=executor == "sim")
        outputs = [
            output
            for step in drive(engine, build_workload(selection, seed=1))
            for output in step.finished
        ]
    assert len(outputs) == 24
    assert sum(output.num_preemptions for output in outputs) > 0
    return [(o.id, o.scheduled, o.first_token, o.finished) for o in outputs] + watch.plans


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "shortest_job_first", "fair_share"])
def test_the_same_plans_at_the_same_times(policy: str, overlap: bool) -> None:
    real, simulated = (decisions(name, policy, overlap) for name in ("torch", "sim"))
    assert len(real) == len(simulated)
    for ours, theirs in zip(simulated, real, strict=True):
        assert ours == theirs
