"""Seconds of simulation per arm, and how they grow with the number of requests.

    python benchmarks/sim/scale.py [--requests 10000,100000,1000000] [--json FILE]

Log-normal prompts (median 512, at most 4096) and outputs (mean 250, at most 2048), Qwen3-8B on
an H100-like roofline, 256 requests at once, load 0.9 of the capacity that a run of 2,000
requests finds; one process. A second part times 8 arms x 10 repeats x 2,000 requests with two
processes, as `nanofw compare` does it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from nanofw.assembly import select
from nanofw.assembly.provenance import commit, machine
from nanofw.compare.experiment import Experiment, ExperimentOptions
from nanofw.compare.run import run_once
from nanofw.compare.runner import run_experiment
from nanofw.config.layers import defaults, python_layer
from nanofw.config.load import load_config

POLICIES = (
    "fcfs", "shortest_job_first", "priority", "longest_prefix_match", "fair_share",
    "earliest_deadline_first", "partitioned", "random",
)  # fmt: skip


def values(num_requests: int) -> dict[str, Any]:
    return {
        "model": {"path": "shape:qwen3-8b"},
        "engine": {"max_num_seqs": 256, "max_model_len": 8192},
        "executor": {"name": "sim", "cost_model": {"name": "roofline", "device": "h100-sxm"}},
        "input": {
            "workload": {
                "name": "poisson", "num_requests": num_requests,
                "prompt": {"distribution": "lognormal", "median": 512, "sigma": 1.0, "high": 4096},
                "output": {"distribution": "lognormal", "mean": 250, "sigma": 1.0, "high": 2048},
            }
        },
    }  # fmt: skip


def arm(num_requests: int, capacity: float) -> dict[str, Any]:
    selection = select(load_config(None, values=values(num_requests)))
    options = ExperimentOptions(arms={"fcfs": {}}, metrics=("ttft.mean", "e2e.mean", "itl.p99"))
    started, cpu = time.perf_counter(), time.process_time()
    run = run_once(selection, options, seed=0, time_scale=1 / (0.9 * capacity))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "requests": num_requests, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
        "steps": run.num_steps,
        "output_tokens": run.num_output_tokens, "simulated_seconds": round(run.seconds, 1),
        "cpu_us_per_step": round(1e6 * cpu / run.num_steps, 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "values": run.values,
    }  # fmt: skip


def grid() -> float:
    layers = {
        name: (defaults(), python_layer({**values(2000), "scheduler": {"name": name}}))
        for name in POLICIES
    }
    options = ExperimentOptions(
        arms={name: {} for name in POLICIES}, loads=(0.9,), repeats=10, aa=False, processes=2
    )
    started = time.perf_counter()
    run_experiment(Experiment(options, layers))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="10000,100000,1000000")
    parser.add_argument("--grid", action="store_true", help="the second part too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    small = select(load_config(None, values=values(2000)))
    capacity = run_once(small, ExperimentOptions(arms={"fcfs": {}}), seed=0, time_scale=0).capacity
    record: dict[str, Any] = {
        "benchmark": "sim/scale", "commit": commit(),
        "command": " ".join(["python benchmarks/sim/scale.py", *sys.argv[1:]]),
        "machine": machine(), "capacity": capacity, "arms": [],
    }  # fmt: skip
    for num in map(int, options.requests.split(",")):
        record["arms"].append(arm(num, capacity))
        print(json.dumps(record["arms"][-1]), flush=True)
        save(options.json, record)
    if options.grid:
        record["grid_seconds"] = round(grid(), 1)
        print(f"8 arms x 10 repeats x 2,000 requests: {record['grid_seconds']} s")
        save(options.json, record)


def save(path: Path | None, record: dict[str, Any]) -> None:
    """As far as it is known: an abort loses nothing."""
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
