"""Simulated runs beside the plain simulator of the tests: the same jobs, the same steps.

    python -m benchmarks.sim.reference [--scale 1] [--rows 256,16,1] [--json FILE]

Processor seconds of the engine (allocators `paged` and `paged_prefix`, no measurements) and of
`tests/sim/reference.py`, with the steps and the microseconds of each.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.assembly import build, select
from nanofw.assembly.provenance import commit, machine
from nanofw.config.load import load_config
from nanofw.measure.drive import drive
from tests.sim.reference import Job, Machine, simulate
from tests.sim.test_reference import Jobs, engine_values

SHAPES = {256: (2000, 40.0), 16: (600, 5.0), 1: (80, 0.35)}
"""By rows: jobs, jobs per second."""


def made(rows: int, num: int, rate: float) -> tuple[Machine, list[Job]]:
    rng = np.random.default_rng(rows)
    server = Machine(
        rows=rows, budget=8192, num_blocks=rows * 300, block_size=16, chunk=None,
        per_step=0.01, per_token=1e-5,
    )  # fmt: skip
    arrivals = np.cumsum(rng.exponential(1 / rate, num)).tolist()
    prompts = np.clip(rng.lognormal(np.log(512), 1.0, num), 1, 3000).astype(int).tolist()
    outputs = np.clip(rng.lognormal(np.log(150), 1.0, num), 1, 1500).astype(int).tolist()
    return server, [
        Job(i, *values) for i, values in enumerate(zip(arrivals, prompts, outputs, strict=True))
    ]


def engine_run(server: Machine, jobs: list[Job], allocator: str) -> tuple[float, int]:
    values = engine_values(server)
    values["engine"]["max_model_len"] = 4800
    values["kv_allocator"]["name"] = allocator
    selection = select(load_config(None, values=values))
    with build(selection) as engine:
        began = time.process_time()
        for _ in drive(engine, Jobs(jobs)):
            pass
        return time.process_time() - began, int(engine.stats()["num_steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    parser.add_argument("--rows", default=",".join(map(str, SHAPES)), help="which shapes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for rows in map(int, options.rows.split(",")):
        num, rate = SHAPES[rows]
        server, jobs = made(rows, max(1, int(num * options.scale)), rate)
        line: dict[str, Any] = {"rows": rows, "jobs": len(jobs)}
        for allocator in ("paged", "paged_prefix"):
            seconds, num_steps = engine_run(server, jobs, allocator)
            line["steps"] = num_steps if allocator == "paged" else line["steps"]
            line[allocator] = round(seconds, 3)
            line[f"{allocator}_us_per_step"] = round(1e6 * seconds / num_steps, 1)
        began = time.process_time()
        assert simulate(server, jobs) == line["steps"]
        line["reference"] = round(time.process_time() - began, 3)
        line["ratio"] = round(line["paged"] / line["reference"], 2)
        lines.append(line)
        print(json.dumps(line), flush=True)
    if options.json is not None:
        record = {"benchmark": "sim/reference", "commit": commit(), "machine": machine(),
                  "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
