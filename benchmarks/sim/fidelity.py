"""Simulated against measured: the same traffic on the real executor and in virtual time.

    python benchmarks/sim/fidelity.py [config.yaml] [--loads 0.5,0.8] [--repeats 4]
        [--requests 150] [--users 16] [--json FILE] [key=value ...]

A cost model is fitted to closed loops (`nanofw calibrate`); then two workloads that it has not
seen run at each load under each policy, really and simulated. The limit of a metric's error is
the larger of 5% and twice the spread of two real runs of the same traffic (A/A); where that
spread exceeds 10% the figure is void. Policies must be ranked alike wherever the real verdict
is not "no evidence".
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.assembly import select
from nanofw.bench.calibrate import Design, fit, record
from nanofw.compare.analysis import analyse
from nanofw.compare.experiment import Experiment, ExperimentOptions
from nanofw.compare.provenance import commit, machine
from nanofw.compare.runner import AA, Results, find_capacity, run_experiment
from nanofw.configs.layers import defaults, file_layers, is_override, override_layer, python_layer
from nanofw.configs.load import resolve

METRICS = tuple(f"{name}.{s}" for name in ("ttft", "tpot", "e2el") for s in ("mean", "p90"))
POLICIES = {
    "fcfs": {"name": "fcfs"},
    "shortest": {"name": "shortest_job_first", "by": "output"},
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "bursts": {
        "name": "gamma", "cv": 2.0, "guess_noise": 0.0,
        "prompt": {"distribution": "lognormal", "median": 40, "sigma": 0.8, "high": 200},
        "output": {"distribution": "lognormal", "median": 24, "sigma": 0.8, "high": 120},
    },
    "two kinds": {
        "name": "poisson", "guess_noise": 0.0,
        "prompt": {"distribution": "uniform", "low": 8, "high": 160},
        "output": {
            "distribution": "mixture",
            "parts": [
                {"weight": 3, "length": {"distribution": "uniform", "low": 4, "high": 16}},
                {"weight": 1, "length": {"distribution": "uniform", "low": 60, "high": 120}},
            ],
        },
    },
}  # fmt: skip


class Bench:
    """One configuration, measured and simulated."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        names = [word for word in options.words if not is_override(word)] or ["qwen3-demo"]
        overrides = [word for word in options.words if is_override(word)]
        users = {"engine": {"max_num_seqs": options.users}}
        self.below = [defaults(), *file_layers(names[0]), python_layer(users)]
        self.above = override_layer(overrides)

    def calibrate(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        steps = record(
            select(resolve([*self.below, self.above])),
            Design(max_users=self.options.users, max_prompt=200, max_output=60),
        )
        made, errors = fit(steps)
        made.write(folder / "cost.json")
        about = {"steps": len(steps), "median_error": errors.median, "p90_error": errors.p90,
                 "total_error": errors.total, "coefficients": dict(made.coefficients)}  # fmt: skip
        print(f"calibrated on {len(steps)} steps: {errors}", flush=True)
        cost = {"name": "fitted", "file": str(folder / "cost.json")}
        return {"executor": {"name": "sim", "cost_model": cost}}, about

    def experiment(self, workload: str, simulated: dict[str, Any], **kwargs: Any) -> Experiment:
        traffic = {**WORKLOADS[workload], "num_requests": self.options.requests}
        shared = python_layer({"input": {"workload": traffic}, **simulated})
        layers = {
            name: (*self.below, self.above, shared, python_layer({"scheduler": scheduler}))
            for name, scheduler in POLICIES.items()
        }
        options = ExperimentOptions(
            arms={name: {} for name in layers}, metrics=METRICS, repeats=self.options.repeats,
            seed=1000, primary="e2el.mean", **kwargs,
        )  # fmt: skip
        return Experiment(options, layers)


def spread(results: Results, point: float, metric: str) -> float:
    """Mean relative difference of two real runs of the same traffic."""
    pairs = zip(results.runs[(point, "fcfs")], results.runs[(point, AA)], strict=True)
    return float(np.mean([abs(b.values[metric] / a.values[metric] - 1) for a, b in pairs]))


def mean(results: Results, point: float, arm: str, metric: str) -> float:
    return float(np.mean([run.values[metric] for run in results.runs[(point, arm)]]))


def compare(bench: Bench, workload: str, simulated: dict[str, Any]) -> list[dict[str, Any]]:
    probe = bench.experiment(workload, simulated)
    capacity = find_capacity(select(probe.load("fcfs")), probe)
    rates = tuple(float(load) * capacity for load in bench.options.loads.split(","))
    real = run_experiment(bench.experiment(workload, {}, rates=rates))
    virtual = run_experiment(bench.experiment(workload, simulated, rates=rates, aa=False))
    verdicts = analyse(real)
    lines: list[dict[str, Any]] = []
    for point in rates:
        load = round(point / capacity, 2)
        for arm in POLICIES:
            for metric in METRICS:
                measured, predicted = (mean(r, point, arm, metric) for r in (real, virtual))
                noise = spread(real, point, metric)
                error = predicted / measured - 1
                lines.append({
                    "workload": workload, "load": load, "arm": arm, "metric": metric,
                    "measured": measured, "simulated": predicted, "error": error, "aa": noise,
                    "void": noise > 0.1, "met": abs(error) <= max(0.05, 2 * noise),
                })  # fmt: skip
        word = verdicts.row(point, "shortest", "e2el.mean").verdict
        ratios = [mean(r, point, "shortest", "e2el.mean") / mean(r, point, "fcfs", "e2el.mean")
                  for r in (real, virtual)]  # fmt: skip
        lines.append({
            "workload": workload, "load": load, "arm": "shortest", "metric": "ranking",
            "measured": ratios[0], "simulated": ratios[1], "verdict": word,
            "met": word == "no evidence" or (ratios[0] < 1) == (ratios[1] < 1),
        })  # fmt: skip
    return lines


def show(line: dict[str, Any]) -> str:
    where = f"{line['workload']:10} {line['load']:4} {line['arm']:9} {line['metric']:10}"
    measured, predicted = line["measured"], line["simulated"]
    if line["metric"] == "ranking":
        text = f"ratio {measured:.3f} and {predicted:.3f}, real verdict {line['verdict']}"
    else:
        text = (
            f"measured {1e3 * measured:9.2f} ms  simulated {1e3 * predicted:9.2f} ms  "
            f"error {line['error']:+7.1%}  A/A {line['aa']:6.1%}{'  void' if line['void'] else ''}"
        )
    return f"{where} {text}{'' if line['met'] or line.get('void') else '  NOT MET'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="[CONFIG] [key=value ...]")
    parser.add_argument("--loads", default="0.5,0.8")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_intermixed_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options)
        simulated, about = bench.calibrate(Path(folder))
        lines: list[dict[str, Any]] = []
        for workload in WORKLOADS:
            found = compare(bench, workload, simulated)
            print("\n".join(map(show, found)), flush=True)
            lines += found
    valid = [line for line in lines if not line.get("void")]
    met = sum(line["met"] for line in valid)
    print(f"{met} of {len(valid)} within their limits, {len(lines) - len(valid)} void")
    record_ = {
        "benchmark": "sim/fidelity", "command": "python benchmarks/sim/fidelity.py",
        "commit": commit(), "machine": machine(), "calibration": about, "lines": lines,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(record_, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
