"""Simulated runs with preemption and a prefix cache, and an own reading of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.assembly import Selection, build, select
from nanofw.config.load import load_config
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput, StepReport
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import Workload
from nanofw.decisions.recorder import recording
from nanofw.engine.engine import Engine
from nanofw.measure.drive import drive


class Mixed(Workload):
    """Random requests of three clients; some prompts begin alike."""

    def __init__(self, num_requests: int, seed: int, rate: float = 12.0) -> None:
        rng = np.random.default_rng(seed)
        prefixes = [rng.integers(0, 1000, 64) for _ in range(4)]
        at, self._requests = 0.0, list[Request]()
        for i in range(num_requests):
            at += float(rng.exponential(1 / rate))
            head = prefixes[int(rng.integers(4))] if rng.random() < 0.5 else prefixes[0][:0]
            tail = rng.integers(0, 1000, int(rng.integers(1, 120)))
            self._requests.append(
                Request(
                    id=f"r{i}",
                    prompt_token_ids=np.concatenate([head, tail]).tolist(),
                    sampling=SamplingParams(max_tokens=int(rng.integers(1, 60)), ignore_eos=True),
                    arrival=at,
                    client=f"c{rng.integers(3)}",
                    priority=int(rng.integers(3)),
                    deadline=at + float(rng.uniform(0.5, 3)),
                )
            )

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def initial(self) -> Iterator[Request]:
        yield from self._requests


def chosen(policy: str = "fcfs", *, num_blocks: int = 40, **engine: Any) -> Selection:
    """A small machine: 6 rows, blocks of 16 tokens, 96 tokens a step."""
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 6, "max_model_len": 512, "max_num_batched_tokens": 96, **engine},
        "kv_allocator": {"name": "paged_prefix", "num_blocks": num_blocks, "block_size": 16},
        "scheduler": {"name": policy},
        "executor": {"name": "sim", "cost_model": {"name": "constant", "seconds_per_step": 0.01,
                                                   "seconds_per_token": 0.0001}},
    }  # fmt: skip
    return select(load_config(None, values=values))


class Reading(StepObserver):
    """What the steps were, noted without the log's code.

    Attributes:
        admitted: step and id of each admission; preempted: step and id of each loss of a row.
        free_rows: by step, after its plan. total: tokens of each step.
    """

    def __init__(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self._rows: dict[int, str] = {}
        self._finished: set[str] = set()
        self.admitted: list[tuple[int, str]] = []
        self.preempted: list[tuple[int, str]] = []
        self.free_rows: list[int] = []
        self.total: list[int] = []
        self.reports: list[StepReport] = []
        self.outputs: dict[str, RequestOutput] = {}

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._finished.update(plan.finished)
        for row in plan.removed.tolist():
            name = self._rows.pop(row)
            if name not in self._finished:
                self.preempted.append((plan.step, name))
        for new in plan.new:
            self._rows[new.row] = new.request_id
            self.admitted.append((plan.step, new.request_id))
        self.free_rows.append(len(self._scheduler.rows.free))
        self.total.append(plan.total_tokens)

    def finished(self, output: RequestOutput) -> None:
        self._finished.add(output.id)
        self.outputs[output.id] = output


def recorded(selection: Selection, workload: Workload, path: Path) -> Reading:
    """Run the workload, write its log, and read its steps."""
    with build(selection) as engine:
        reading = Reading(engine)
        with recording(engine, selection, path), engine.observed_by(reading):
            for output in drive(engine, workload):
                if output.report is not None:
                    reading.reports.append(output.report)
        assert engine.stats()["num_finished"]["length"] == workload.num_requests
    return reading
