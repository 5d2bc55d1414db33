"""Simulated against measured: the same traffic on the real executor and in virtual time.

    python -m benchmarks.sim.fidelity [config.yaml] [--seconds 660] [--loads 0.5,0.8]
        [--repeats 8] [--run-seconds 6] [--users 8] [--scale 1] [--clock process]
        [--json FILE] [--steps FILE] [key=value ...]

    MODELS=folder python -m benchmarks.sim.fidelity --model 0.6b --seconds 350 --users 16
        --scale 4 --run-seconds 4 --json FILE

A cost model is fitted to closed loops and waves (`nanofw calibrate`); then two workloads that it
has not seen run at each load under each policy, really and simulated. One turn is a workload at a
load with one seed: first come, shortest first, and first come again on the same traffic (A/A), in
this or the opposite order. Turns end when `--seconds` leave no room for another one. What is known
is printed, and written to the file, after each turn. One run of each workload comes before, which
does not count: kernels that are met for the first time are compiled.

After every `--calibrate-every` rounds of turns some loops of the calibration run again, since
machines drift; at the end the cost model is fitted to all of them, and every turn simulated with
it.

A line is void where the 95% interval of its mean A/A difference exceeds 10% on either side. Else
the error of a mean may be 5%, that of a p90 10%. Policies must be ranked alike wherever the real
verdict is not "no evidence". `engine.overlap` is the same in both, and said.

`--model 0.6b` makes a checkpoint of that shape with random weights in `$MODELS` and runs it.
`--scale` multiplies all lengths. `--clock process` counts the process's own processor time and
skips waiting: for one thread on a CPU that others use too. `--clock precise` spins for the last
millisecond of each wait, so that waking up costs no time that the simulation does not have.
`--repeats 0` calibrates and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sim.clocks import PreciseClock, ProcessClock
from benchmarks.sim.fidelity_lines import ARMS, METRICS, POLICIES, Turn, lines_of, show
from benchmarks.sim.lent import RealEngines
from nanofw.assembly import Selection, select
from nanofw.assembly.provenance import commit, machine
from nanofw.bench.calibrate import Design, MeasuredStep, fit, record_on, table
from nanofw.compare.experiment import AA, ExperimentOptions
from nanofw.compare.run import RunResult, run_on, run_once
from nanofw.config.layers import (
    ConfigLayer,
    defaults,
    file_layers,
    is_override,
    override_layer,
    python_layer,
)  # fmt: skip
from nanofw.config.load import resolve

FIRST_SEED = 1000
MEASURED = ExperimentOptions(arms={"fcfs": {}}, metrics=METRICS)


def workloads(scale: int) -> dict[str, dict[str, Any]]:
    return {
        "bursts": {
            "name": "gamma", "cv": 3.0, "guess_noise": 0.0,
            "prompt": {
                "distribution": "lognormal", "median": 40 * scale, "sigma": 0.8, "high": 200 * scale
            },
            "output": {
                "distribution": "lognormal", "median": 24 * scale, "sigma": 0.8, "high": 120 * scale
            },
        },
        "two kinds": {
            "name": "poisson", "guess_noise": 0.0,
            "prompt": {"distribution": "uniform", "low": 8 * scale, "high": 160 * scale},
            "output": {
                "distribution": "mixture",
                "parts": [
                    {"weight": 3, "length": {
                        "distribution": "uniform", "low": 4 * scale, "high": 16 * scale}},
                    {"weight": 1, "length": {
                        "distribution": "uniform", "low": 60 * scale, "high": 120 * scale}},
                ],
            },
        },
    }  # fmt: skip


@dataclass(slots=True)
class Cell:
    """A workload at a load, and its turns."""

    workload: str
    load: float
    time_scale: float
    real: dict[str, Selection]
    simulated: dict[str, Selection]
    turns: list[Turn] = field(default_factory=list[Turn])


class Bench:
    """One configuration, measured and simulated."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.started = options, time.monotonic()
        names = [word for word in options.words if not is_override(word)] or ["qwen3-demo"]
        longest = 400 * options.scale
        shared: dict[str, Any] = {
            "engine": {"max_num_seqs": options.users, "max_model_len": longest}
        }
        if options.model:
            shared["model"] = {"path": str(make_model(options.model))}
        overrides = [word for word in options.words if is_override(word)]
        self.layers = [
            defaults(), *file_layers(names[0]), python_layer(shared), override_layer(overrides)
        ]  # fmt: skip
        chosen = select(resolve(self.layers))
        self.layers.append(python_layer({"engine": {"overlap": chosen.overlap}}))
        self.first = select(resolve(self.layers))
        clocks = {"process": ProcessClock(), "precise": PreciseClock()}
        self.engines = RealEngines(self.first, clocks.get(options.clock))
        self.steps: list[MeasuredStep] = []
        self.cost_file = folder / "cost.json"
        self.simulation_s = 0.0  # the longest of a turn
        self.record: dict[str, Any] = {
            "benchmark": "sim/fidelity",
            "command": " ".join(["python -m benchmarks.sim.fidelity", *sys.argv[1:]]),
            "clock": options.clock,
            "commit": commit(), "machine": machine(), "model": options.model or names[0],
            "device": self.first.device, "overlap": chosen.overlap,
            "cuda_graphs": self.first.cuda_graphs, "calibrations": [],
        }  # fmt: skip
        print(f"{self.spent():5.0f} s  ready on {self.first.device}, overlap {chosen.overlap}",
              flush=True)  # fmt: skip

    def spent(self) -> float:
        return time.monotonic() - self.started

    def left(self) -> float:
        return self.options.seconds - self.spent()

    def calibrate(self) -> None:
        """Run the calibration's loops, other ones each time, and fit to all that were seen."""
        scale, number = self.options.scale, len(self.record["calibrations"])
        design = Design(
            max_users=self.options.users, max_prompt=200 * scale, max_output=60 * scale,
            repeats=1 if number else self.options.calibrations, seed=100 * number,
        )  # fmt: skip
        self.steps += record_on(self.engines.engine(self.first), self.first, design)
        made, errors = fit(self.steps)
        made.write(self.cost_file)
        self.record["calibrations"].append({
            "steps": len(self.steps), "median_error": errors.median, "p90_error": errors.p90,
            "total_error": errors.total, "coefficients": dict(made.coefficients),
            "host": dict(made.host),
        })  # fmt: skip
        print(f"{self.spent():5.0f} s  calibrated on {len(self.steps)} steps: {errors}", flush=True)
        if not number:
            for name, num, measured, fitted in table(self.steps, made):
                print(f"         {name:>9} rows {num:6} steps  measured {1e3 * measured:8.3f} ms"
                      f"  fitted {1e3 * fitted:8.3f} ms", flush=True)  # fmt: skip
        if self.options.steps:
            rows = [[*step.work, step.loop, step.seconds, step.host_seconds] for step in self.steps]
            self.options.steps.write_text(json.dumps(rows), encoding="utf-8")

    def virtual(self) -> ConfigLayer:
        """The layer that simulates what is measured, with its pool."""
        blocks = self.engines.engine(self.first).scheduler.limits.num_blocks
        cost = {"name": "fitted", "file": str(self.cost_file)}
        return python_layer(
            {
                "executor": {"name": "sim", "cost_model": cost},
                "engine": {"device": "auto"},
                "kv_allocator": {"num_blocks": blocks, "block_size": self.first.block_size},
            }
        )

    def cells(self, simulated: ConfigLayer) -> list[Cell]:
        found: list[Cell] = []
        for name, traffic in workloads(self.options.scale).items():
            for load in map(float, self.options.loads.split(",")):
                found.append(self.cell(name, traffic, load, simulated))
        return found

    def cell(self, name: str, traffic: dict[str, Any], load: float, simulated: ConfigLayer) -> Cell:
        """The capacity is the simulator's; the same arrivals go to both."""
        probe = self.selections({**traffic, "num_requests": 300}, [simulated])["fcfs"]
        capacity = run_once(probe, MEASURED, seed=0, time_scale=0.0).capacity
        rate = load * capacity
        traffic = {**traffic, "num_requests": max(60, round(rate * self.options.run_seconds))}
        print(f"{self.spent():5.0f} s  {name} at {load}: {rate:.2f} of {capacity:.2f} requests/s, "
              f"{traffic['num_requests']} a run", flush=True)  # fmt: skip
        real = self.selections(traffic, [])
        return Cell(name, load, 1.0 / rate, real, self.selections(traffic, [simulated]))

    def selections(self, traffic: dict[str, Any], more: list[ConfigLayer]) -> dict[str, Selection]:
        layer = python_layer({"input": {"workload": traffic}})
        return {
            name: select(
                resolve([*self.layers, *more, layer, python_layer({"scheduler": scheduler})])
            )
            for name, scheduler in POLICIES.items()
        }

    def turn(self, cell: Cell, seed: int, backwards: bool) -> Turn:
        turn = Turn(seed)
        for arm in reversed(ARMS) if backwards else ARMS:
            selection = cell.real["fcfs" if arm == AA else arm]
            with self.engines.engine(selection) as engine:
                run = run_on(engine, selection, MEASURED, seed=seed, time_scale=cell.time_scale)
            turn.real[arm] = dict(run.values)
            turn.notes += flaws(run)
        self.simulate(cell, turn)
        return turn

    def warm_up(self, cell: Cell) -> None:
        with self.engines.engine(cell.real["fcfs"]) as engine:
            run_on(engine, cell.real["fcfs"], MEASURED, seed=0, time_scale=cell.time_scale)

    def simulate(self, cell: Cell, turn: Turn) -> None:
        """With the cost model as it is fitted now."""
        before = self.spent()
        for arm, selection in cell.simulated.items():
            run = run_once(selection, MEASURED, seed=turn.seed, time_scale=cell.time_scale)
            turn.simulated[arm] = dict(run.values)
        self.simulation_s = max(self.simulation_s, self.spent() - before)

    def save(self, cells: list[Cell]) -> list[dict[str, Any]]:
        lines = [
            {"workload": cell.workload, "load": cell.load, **line}
            for cell in cells
            for line in lines_of(cell.turns)
        ]
        if self.options.json:
            turns = [
                {"workload": cell.workload, "load": cell.load, **turn.plain()}
                for cell in cells
                for turn in cell.turns
            ]
            record = {
                **self.record,
                "graph_steps": self.engines.graph_steps,
                "seconds": round(self.spent(), 1),
                "lines": lines,
                "turns": turns,
            }
            self.options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return lines


def flaws(run: RunResult) -> list[str]:
    found = list(run.notes)
    if run.lagging:
        found.append(f"the client was {1e3 * run.lag_s:.1f} ms late")
    if run.overloaded:
        found.append("the queue was still growing at the end")
    return found


def make_model(name: str) -> Path:
    from benchmarks.gpu.make_model import make  # imports torch

    folder = os.environ.get("MODELS")
    return make(Path(folder) if folder else Path(tempfile.gettempdir()) / "models", name)


def run_turns(bench: Bench, cells: list[Cell]) -> None:
    """Turns in turn over all cells, until all are done or the time is."""
    if bench.options.repeats:
        for cell in cells:
            bench.warm_up(cell)
    waiting = [
        (cell, FIRST_SEED + repeat) for repeat in range(bench.options.repeats) for cell in cells
    ]
    longest = 0.0
    for number, (cell, seed) in enumerate(waiting):
        again = bench.simulation_s * (number + 1)  # of all turns, at the end
        if bench.left() < 1.1 * longest + again + 1:
            print(f"{bench.spent():5.0f} s  no time for {len(waiting) - number} more turns",
                  flush=True)  # fmt: skip
            break
        before = bench.spent()
        if number and number % (len(cells) * bench.options.calibrate_every) == 0:
            bench.calibrate()
        turn = bench.turn(cell, seed, backwards=bool(number // len(cells) % 2))
        longest = max(longest, bench.spent() - before)
        cell.turns.append(turn)
        print(f"{bench.spent():5.0f} s  {cell.workload} {cell.load} {turn}", flush=True)
        bench.save(cells)
    for cell in cells:
        for turn in cell.turns:
            bench.simulate(cell, turn)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("words", nargs="*", metavar="[CONFIG] [key=value ...]")
    made.add_argument("--model", help="a shape with random weights: 0.6b, 8b, small")
    made.add_argument("--seconds", type=float, default=660.0, help="the whole takes no longer")
    made.add_argument("--loads", default="0.5,0.8")
    made.add_argument("--repeats", type=int, default=8)
    made.add_argument("--run-seconds", type=float, default=6.0)
    made.add_argument("--users", type=int, default=8)
    made.add_argument("--scale", type=int, default=1)
    made.add_argument("--calibrations", type=int, default=2)
    made.add_argument("--calibrate-every", type=int, default=1, help="rounds of turns")
    made.add_argument("--clock", choices=("wall", "precise", "process"), default="wall")
    made.add_argument("--json", type=Path)
    made.add_argument("--steps", type=Path, help="where the calibration's steps are written")
    return made


def main() -> None:
    options = parser().parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.calibrate()
        cells = bench.cells(bench.virtual())
        run_turns(bench, cells)
        lines = bench.save(cells)
        bench.engines.close()
    print("\n".join(map(show, lines)))
    valid = [line for line in lines if not line.get("void")]
    met = sum(line["met"] for line in valid)
    print(f"{met} of {len(valid)} within their limits, {len(lines) - len(valid)} void; "
          f"{bench.spent():.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
