"""What a decision log costs a simulated run: pairs of runs with and without one, in turns.

    python -m benchmarks.sim.decision_log [--pairs 10] [--json FILE]

Processor time of each run, and the ratio's median over pairs with an interval of its mean.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nanofw.assembly import build, build_workload, select
from nanofw.assembly.provenance import commit, machine
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.run import run_on
from nanofw.config.load import load_config
from nanofw.decisions.recorder import recording
from nanofw.measure.drive import drive

SHAPES = {"256 rows": (256, 3000, 40.0), "16 rows": (16, 1200, 5.0), "1 row": (1, 150, 0.3)}
"""Rows, requests, requests per second."""


def chosen(rows: int, num_requests: int, rate: float) -> Any:
    values = {
        "model": {"path": "shape:qwen3-8b"},
        "engine": {"max_num_seqs": rows, "max_model_len": 8192},
        "executor": {"name": "sim", "cost_model": {"name": "roofline", "device": "h100-sxm"}},
        "input": {"workload": {
            "name": "poisson", "num_requests": num_requests, "rate": rate,
            "prompt": {"distribution": "lognormal", "median": 512, "sigma": 1.0, "high": 4096},
            "output": {"distribution": "lognormal", "mean": 250, "sigma": 1.0, "high": 2048},
        }},
    }  # fmt: skip
    return select(load_config(None, values=values))


def plain_run(selection: Any, path: Path | None) -> tuple[float, int]:
    """Processor seconds of a run, and its steps."""
    with build(selection) as engine:
        workload = build_workload(selection, seed=1)
        began = time.process_time()
        if path is None:
            for _ in drive(engine, workload):
                pass
        else:
            with recording(engine, selection, path):
                for _ in drive(engine, workload):
                    pass
        return time.process_time() - began, int(engine.stats()["num_steps"])


def measured_run(selection: Any, path: Path | None) -> tuple[float, int]:
    """The same as an arm of `nanofw compare`, with its measurements."""
    options = ExperimentOptions(arms={"a": {}})
    began = time.process_time()
    with build(selection) as engine, recording(engine, selection, path) if path else nullcontext():
        run = run_on(engine, selection, options, seed=1, time_scale=1.0)
    return time.process_time() - began, run.num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        for name, (rows, num, rate) in SHAPES.items():
            selection = chosen(rows, max(1, int(num * options.scale)), rate)
            for kind, run in (("engine alone", plain_run), ("arm of compare", measured_run)):
                run(selection, None)
                ratios, num_steps, without = [], 0, []
                for pair in range(options.pairs):
                    order = (None, path) if pair % 2 == 0 else (path, None)
                    found = {where: run(selection, where) for where in order}
                    ratios.append(found[path][0] / found[None][0])
                    num_steps, seconds = found[None][1], found[None][0]
                    without.append(seconds)
                logs = np.log(ratios)
                half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
                line = {
                    "shape": name, "run": kind, "steps": num_steps,
                    "us_per_step": round(1e6 * float(np.median(without)) / num_steps, 2),
                    "ratio": round(float(np.exp(logs.mean())), 4),
                    "interval": [round(float(np.exp(logs.mean() + s * half)), 4) for s in (-1, 1)],
                    "log_bytes": path.stat().st_size,
                }  # fmt: skip
                lines.append(line)
                print(json.dumps(line), flush=True)
    if options.json is not None:
        record = {"benchmark": "sim/decision_log", "commit": commit(), "machine": machine(),
                  "pairs": options.pairs, "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
