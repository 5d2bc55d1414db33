"""Steps taken at once leave everything as steps taken one by one, and who could notice has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanofw import Engine, StepObserver
from nanofw.assembly import Selection, build, select
from nanofw.compare.client_service import ClientService
from nanofw.config.load import load_config
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.cost_model import CostModelConfig
from nanofw.contracts.kv_allocator import Extension
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.scheduler import SchedulerView
from nanofw.contracts.stride import Stride
from nanofw.contracts.workload import Workload
from nanofw.decisions.recorder import recording
from nanofw.engine.scheduler import Scheduler
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.measure.drive import drive
from nanofw.measure.token_times import TokenTimes
from nanofw.sim.checked import CheckedCostModel
from nanofw.sim.constant import ConstantCost, ConstantOptions
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions
from nanofw.testing.sim_engine import SPEC, EngineShape
from tests.engine.sim_engines import FirstCome, make_request

CONFIG = CostModelConfig(spec=SPEC, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64)
POLICIES = ("fcfs", "shortest_job_first", "priority", "longest_prefix_match", "fair_share",
            "earliest_deadline_first", "partitioned", "random")  # fmt: skip


class Random(Workload):
    """Requests of some clients: some begin alike, some have siblings, some are equal."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        prefixes = [rng.integers(0, 1000, 40) for _ in range(3)]
        rate, clients = float(rng.choice([2.0, 8.0, 30.0])), int(rng.integers(1, 4))
        ends = bool(rng.random() < 0.2)
        at, self._requests = 0.0, list[Request]()
        for i in range(25):
            at += float(rng.exponential(1 / rate))
            head = prefixes[int(rng.integers(3))] if rng.random() < 0.5 else prefixes[0][:0]
            tail = rng.integers(0, 1000, int(rng.integers(1, 80)))
            sampling = SamplingParams(
                max_tokens=int(rng.integers(1, 120)),
                ignore_eos=not ends,
                n=2 if rng.random() < 0.1 else 1,
                seed=7 if rng.random() < 0.2 else None,
            )
            prompt = prefixes[0] if sampling.seed else np.concatenate([head, tail])
            self._requests.append(
                Request(
                    id=f"r{i}",
                    prompt_token_ids=prompt.tolist(),
                    sampling=sampling,
                    arrival=at,
                    client=f"c{rng.integers(clients)}",
                    priority=int(rng.integers(3)),
                    deadline=at + float(rng.uniform(0.5, 3)),
                )
            )

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def initial(self) -> Iterator[Request]:
        yield from self._requests


def random_selection(seed: int, folder: Path) -> Selection:
    rng = np.random.default_rng([seed, 1])
    fitted = folder / "cost.json"
    fitted.write_text(
        '{"coefficients": {"step": 0.004, "key": 1e-6, "pair": 1e-7, "prefill": 0.001},'
        ' "host": {"step": 0.003, "row": 2e-5, "key": 1e-7, "after prefill": 0.001}, "about": {}}'
    )
    costs: list[dict[str, Any]] = [
        {"name": "constant", "seconds_per_step": 0.01},
        {"name": "constant", "seconds_per_step": 0.01, "seconds_per_token": 1e-4},
        {"name": "roofline", "device": "l4", "overhead_us": 4000},
        {"name": "fitted", "file": str(fitted)},
    ]
    block_size = int(rng.choice([4, 16]))
    policy: dict[str, Any] = {"name": str(rng.choice(POLICIES))}
    if policy["name"] == "priority":
        policy["preempt"] = bool(rng.random() < 0.5)
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {
            "max_num_seqs": int(rng.choice([1, 2, 4, 12])), "max_model_len": 256,
            "max_num_batched_tokens": int(rng.choice([8, 64, 512])),
            "chunk_tokens": int(rng.choice([0, 24])) or None,
            "batching": str(rng.choice(["mixed", "prefill_first"])),
            "overlap": bool(rng.random() < 0.5),
        },
        "kv_allocator": {
            "name": str(rng.choice(["paged", "paged_prefix"])), "block_size": block_size,
            "num_blocks": int(rng.choice([300, 900, 3000])) // block_size,
        },
        "scheduler": policy,
        "executor": {"name": "sim", "cost_model": costs[int(rng.integers(4))],
                     "eos_probability": float(rng.choice([0.0, 0.02]))},
    }  # fmt: skip
    return select(load_config(None, values=values))


class EveryStep(StepObserver):
    """Has every step taken for itself."""

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None: ...


class Strides(StepObserver):
    """Counts the steps that were taken at once."""

    def __init__(self) -> None:
        self.num_steps = 0

    def strode(self, stride: Stride) -> None:
        self.num_steps += len(stride)


def run(selection: Selection, seed: int, log: Path, *observers: StepObserver) -> dict[str, Any]:
    """All that a run brought."""
    times, service, outputs = TokenTimes(), ClientService(), dict[Any, RequestOutput]()
    with build(selection) as engine, recording(engine, selection, log):
        with engine.observed_by(times, service, *observers):
            for step in drive(engine, Random(seed), lambda r, _: service.add_request(r)):
                outputs |= {(o.id, o.sample_index): o for o in step.finished}
        engine.scheduler.allocator.check_integrity()
    return {
        "stats": engine.stats(),
        "end": engine.clock.now(),
        "outputs": {key: shown(output) for key, output in outputs.items()},
        "order": list(outputs),
        "gaps": [array.tolist() for array in times.gaps(0, np.inf)],
        "tokens": [times.num_tokens(0, at) for at in np.linspace(0, engine.clock.now(), 50)],
        "service": (service.total.tolist(), service.max_gap, service.shares(0.1, 2.0)),
        "log": log.read_bytes(),
    }


def shown(output: RequestOutput) -> dict[str, Any]:
    values = {name: getattr(output, name) for name in output.__dataclass_fields__}
    return values | {"token_ids": output.token_ids.tolist()}


MOSTLY_STRIDES = (4, 10, 11, 12, 16, 19)
"""Seeds of cases with few rows and room in the pool."""


@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(s, marks=pytest.mark.slow) for s in range(25, 300))]
)
def test_strides_leave_all_as_single_steps_do(seed: int, tmp_path: Path) -> None:
    selection = random_selection(seed, tmp_path)
    strides = Strides()
    plain = run(selection, seed, tmp_path / "log", EveryStep())
    found = run(selection, seed, tmp_path / "log", strides)
    for name, value in plain.items():
        assert found[name] == value, name
    if seed in MOSTLY_STRIDES:
        assert strides.num_steps > plain["stats"]["num_steps"] / 2


class HearsProgress(FirstCome):
    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None: ...


class OwnExtend(PagedAllocator):
    def extend(self, rows: IntArray, num_tokens: IntArray) -> Extension | None:
        return super().extend(rows, num_tokens)


class OwnSubmit(SimExecutor):
    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)


class Told(EveryStep):
    def strode(self, stride: Stride) -> None: ...


class ToldOfOthers(Told):
    def submitted(self, plan: StepPlan, now: float) -> None: ...


def small_engine(**changes: Any) -> Engine:
    shape, clock = EngineShape(prefix_cache=False), VirtualClock()
    executor = changes.get("executor", SimExecutor)
    return Engine(
        spec=SPEC,
        scheduler=Scheduler(
            shape.limits(),
            changes.get("policy", FirstCome)(),
            changes.get("allocator", PagedAllocator)(None, shape.allocator_config()),
        ),
        executor=executor(SimOptions(), shape.executor_config(SPEC, clock)),
        clock=clock,
        observers=[observer() for observer in changes.get("observers", ())],
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"policy": HearsProgress}, False),
        ({"allocator": OwnExtend}, False),
        ({"executor": OwnSubmit}, False),
        ({"observers": [Strides]}, True),
        ({"observers": [Told]}, True),
        ({"observers": [Told, EveryStep]}, False),
        ({"observers": [ToldOfOthers]}, False),
    ],
    ids=str,
)
def test_who_could_notice_has_every_step(changes: dict[str, Any], expected: bool) -> None:
    assert small_engine(**changes).has_strides is expected


def test_a_cost_model_that_knows_no_steady_steps_is_asked_for_each() -> None:
    class Counting(ConstantCost):
        num_asked = 0

        def seconds(self, plan: StepPlan) -> float:
            self.num_asked += 1
            return 0.01

    model = CheckedCostModel(Counting(ConstantOptions(), CONFIG), "counting")
    assert not model.knows_steady_steps


def test_a_stride_ends_before_a_request_arrives() -> None:
    engine = small_engine()
    engine.add_request(make_request("a", 4, max_tokens=40, ignore_eos=True))
    steps = [engine.step_until(0.155).report for _ in range(4)]
    assert [report.step for report in steps if report] == [0, 1, 15, 16]
    assert engine.clock.now() == pytest.approx(0.17)
