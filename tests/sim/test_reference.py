"""The engine on the simulated device against an independent simulator, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nanofw.assembly import build, select
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import Workload
from nanofw.measure.drive import drive
from tests.sim.reference import Job, Machine, simulate


class Jobs(Workload):
    """The jobs as requests."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs

    @property
    def num_requests(self) -> int:
        return len(self._jobs)

    def initial(self) -> Iterator[Request]:
        for job in self._jobs:
            sampling = SamplingParams(max_tokens=job.num_output, ignore_eos=True)
            prompt = np.full(job.num_prompt, job.number, np.int32)
            yield Request(
                id=str(job.number), prompt_token_ids=prompt, sampling=sampling, arrival=job.arrival
            )


def random_case(seed: int) -> tuple[Machine, list[Job]]:
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 3, 8]))
    machine = Machine(
        rows=rows, budget=int(rng.choice([32, 96, 256])), block_size=int(rng.choice([4, 16])),
        num_blocks=int(rng.integers(60, 120)), chunk=int(rng.choice([0, 24])) or None,
        per_step=0.01, per_token=float(rng.choice([0.0, 1e-4])),
    )  # fmt: skip
    arrivals = np.cumsum(rng.exponential(0.12 / rows, 40)).tolist()
    longest = machine.num_blocks * machine.block_size // 2
    jobs = [
        Job(
            number,
            at,
            int(rng.integers(1, min(150, longest))),
            int(rng.integers(1, min(60, longest))),
        )
        for number, at in enumerate(arrivals)
    ]
    return machine, jobs


def engine_values(machine: Machine) -> dict[str, Any]:
    return {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {
            "max_num_seqs": machine.rows, "max_num_batched_tokens": machine.budget,
            "chunk_tokens": machine.chunk, "overlap": False,
            "max_model_len": min(1024, machine.num_blocks * machine.block_size),
        },
        "kv_allocator": {
            "name": "paged", "num_blocks": machine.num_blocks, "block_size": machine.block_size,
        },
        "executor": {"name": "sim", "cost_model": {
            "name": "constant", "seconds_per_step": machine.per_step,
            "seconds_per_token": machine.per_token}},
    }  # fmt: skip


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(s, marks=pytest.mark.slow) for s in range(10, 300))]
)
def test_times_of_all_requests_agree(seed: int) -> None:
    machine, jobs = random_case(seed)
    selection = select(load_config(None, values=engine_values(machine)))
    outputs = {}
    with build(selection) as engine:
        for step in drive(engine, Jobs(jobs)):
            outputs.update({output.id: output for output in step.finished})
        num_steps = engine.stats()["num_steps"]
    assert simulate(machine, jobs) == num_steps
    for job in jobs:
        output = outputs[str(job.number)]
        found = output.scheduled, output.first_token, output.finished
        assert found == pytest.approx((job.scheduled, job.first_token, job.finished), abs=1e-9)
        assert output.num_preemptions == job.num_preemptions


def test_the_cases_have_preemptions() -> None:
    total = 0
    for seed in range(10):
        machine, jobs = random_case(seed)
        simulate(machine, jobs)
        total += sum(job.num_preemptions for job in jobs)
    assert total > 20
