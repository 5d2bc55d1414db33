"""Simulated against measured: the same traffic on the real executor and in virtual time.

    python benchmarks/sim/fidelity.py [config.yaml] [--loads 0.5,0.8] [--repeats 4]
        [--requests 150] [--users 16] [--clock process] [--json FILE] [key=value ...]

A cost model is fitted to closed loops (`nanofw calibrate`); then two workloads that it has not
seen run at each load under each policy, really and simulated. The limit of a metric's error is
the larger of 5% and twice the spread of two real runs of the same traffic (A/A); where that
spread exceeds 10% the figure is void. Policies must be ranked alike wherever the real verdict
is not "no evidence".

`--clock process` counts the process's own processor time and skips waiting: for one thread on a
CPU that others use too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.assembly import Selection, select
from nanofw.assembly.provenance import commit, machine
from nanofw.bench.calibrate import Design, fit, record
from nanofw.bench.clock import ProcessClock
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.run import RunResult, run_once
from nanofw.compare.runner import AA
from nanofw.compare.statistics import paired_effect, verdict
from nanofw.configs.layers import defaults, file_layers, is_override, override_layer, python_layer
from nanofw.configs.load import resolve
from nanofw.core.clock import Clock

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
        self.measured = ExperimentOptions(arms={"fcfs": {}}, metrics=METRICS)

    def clock(self) -> Clock | None:
        return ProcessClock() if self.options.clock == "process" else None

    def calibrate(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        real = select(resolve([*self.below, self.above]))
        design = Design(max_users=self.options.users, max_prompt=200, max_output=60)
        steps = record(real, design, self.clock())
        made, errors = fit(steps)
        made.write(folder / "cost.json")
        about = {"steps": len(steps), "median_error": errors.median, "p90_error": errors.p90,
                 "total_error": errors.total, "coefficients": dict(made.coefficients)}  # fmt: skip
        print(f"calibrated on {len(steps)} steps: {errors}", flush=True)
        cost = {"name": "fitted", "file": str(folder / "cost.json")}
        overlap = {"overlap": real.overlap}  # auto is on in virtual time and off on a CPU
        return {"engine": overlap, "executor": {"name": "sim", "cost_model": cost}}, about

    def selections(self, workload: str, changes: dict[str, Any]) -> dict[str, Selection]:
        traffic = {**WORKLOADS[workload], "num_requests": self.options.requests}
        shared = python_layer({"input": {"workload": traffic}, **changes})
        return {
            name: select(
                resolve([*self.below, self.above, shared, python_layer({"scheduler": scheduler})])
            )
            for name, scheduler in POLICIES.items()
        }

    def runs(
        self, selections: dict[str, Selection], arms: list[str], scale: float
    ) -> dict[str, list[RunResult]]:
        """Runs of each arm, taking turns; `A/A` is the first arm again on the same traffic."""
        found: dict[str, list[RunResult]] = {arm: [] for arm in arms}
        for repeat in range(self.options.repeats):
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                selection = selections["fcfs" if arm == AA else arm]
                real = not selection.virtual_time
                found[arm].append(
                    run_once(
                        selection, self.measured, seed=1000 + repeat, time_scale=scale,
                        clock=self.clock() if real else None,
                    )
                )  # fmt: skip
        return found


def mean(runs: list[RunResult], metric: str) -> float:
    return float(np.mean([run.values[metric] for run in runs]))


def spread(runs: dict[str, list[RunResult]], metric: str) -> float:
    """Mean relative difference of two real runs of the same traffic."""
    pairs = zip(runs["fcfs"], runs[AA], strict=True)
    return float(np.mean([abs(b.values[metric] / a.values[metric] - 1) for a, b in pairs]))


def compare(bench: Bench, workload: str, simulated: dict[str, Any]) -> list[dict[str, Any]]:
    ours, theirs = bench.selections(workload, simulated), bench.selections(workload, {})
    capacity = run_once(ours["fcfs"], bench.measured, seed=0, time_scale=0.0).capacity
    lines: list[dict[str, Any]] = []
    for load in map(float, bench.options.loads.split(",")):
        scale = 1.0 / (load * capacity)  # the workloads have rate 1
        real = bench.runs(theirs, [*POLICIES, AA], scale)
        virtual = bench.runs(ours, list(POLICIES), scale)
        for arm, metric in itertools.product(POLICIES, METRICS):
            measured, predicted = mean(real[arm], metric), mean(virtual[arm], metric)
            noise, error = spread(real, metric), predicted / measured - 1
            lines.append({
                "workload": workload, "load": load, "arm": arm, "metric": metric,
                "measured": measured, "simulated": predicted, "error": error, "aa": noise,
                "void": noise > 0.1, "met": abs(error) <= max(0.05, 2 * noise),
            })  # fmt: skip
        lines.append({"workload": workload, "load": load, **ranking(real, virtual)})
    return lines


def ranking(
    real: dict[str, list[RunResult]], virtual: dict[str, list[RunResult]]
) -> dict[str, Any]:
    """Whether the policies come out in the same order, where the real runs say that they differ."""
    base, other = ([run.values["e2el.mean"] for run in real[arm]] for arm in POLICIES)
    effect = paired_effect(base, other, by_ratio=True, alpha=0.05)
    word = verdict(effect, effect.p_value, higher_is_better=False, alpha=0.05)
    ratios = [
        mean(runs["shortest"], "e2el.mean") / mean(runs["fcfs"], "e2el.mean")
        for runs in (real, virtual)
    ]
    return {
        "arm": "shortest", "metric": "ranking", "measured": ratios[0], "simulated": ratios[1],
        "verdict": word, "met": word == "no evidence" or (ratios[0] < 1) == (ratios[1] < 1),
    }  # fmt: skip


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
    parser.add_argument("--clock", choices=("wall", "process"), default="wall")
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
        "clock": options.clock, "commit": commit(), "machine": machine(),
        "calibration": about, "lines": lines,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(record_, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
