"""A roofline fitted to measured steps of one model, applied to the shape of another.

    python -m benchmarks.sim.other_shape STEPS_OF_ONE STEPS_OF_OTHER [--one 0.6b] [--other 8b]
        [--device h200] [--json FILE]

The files are what `benchmarks.sim.fidelity --steps` wrote. Fitted are the four numbers of the cost
model `roofline`: both efficiencies and the time of a step and of a row; the time of a step is
mostly that of launches between layers, and is applied by the number of layers. The error on the
other model is said beside that of the same roofline fitted to that model itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from nanofw.assembly.provenance import commit
from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.cost_model import CostModelConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.sim.roofline import Roofline, RooflineOptions
from nanofw.sim.shapes import shape
from nanofw.sim.work import StepWork

MOST = 3000
"""Every how many steps one is used for the fit."""
STARTS = (0.5, 0.6, 200.0, 1.0)
"""Efficiencies of arithmetic and of memory, microseconds of a step and of a row."""


def read(path: Path) -> tuple[list[StepWork], FloatArray]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    rows = rows[:: max(1, len(rows) // MOST)]
    width = len(StepWork._fields)
    seconds = np.array([row[width + 1] for row in rows])
    return [StepWork(*row[:width]) for row in rows], seconds


def predicted(
    spec: ModelSpec, device: str, numbers: tuple[float, ...], works: list[StepWork]
) -> FloatArray:
    """Seconds of the steps, as the roofline with these numbers says."""
    compute, bandwidth, step_us, row_us = numbers
    options = RooflineOptions(
        device=device, compute_efficiency=compute, bandwidth_efficiency=bandwidth
    )
    facts = CostModelConfig(
        spec=spec, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1, memory_utilization=1.0
    )
    model = Roofline(options, facts)
    parts = [sum(model.parts(work)) + 1e-6 * row_us * work.num_rows for work in works]
    return np.array(parts) + 1e-6 * step_us


def fit(
    spec: ModelSpec, device: str, works: list[StepWork], seconds: FloatArray
) -> tuple[float, ...]:
    """By relative errors, without much regard to what held up single steps."""

    def numbers(logs: FloatArray) -> tuple[float, ...]:
        values = np.exp(logs)
        return tuple(np.minimum(values, (1.0, 1.0, np.inf, np.inf)).tolist())

    def errors(logs: FloatArray) -> FloatArray:
        return predicted(spec, device, numbers(logs), works) / seconds - 1

    found: Any = least_squares(errors, np.log(STARTS), loss="soft_l1", f_scale=0.1)
    return numbers(found.x)


def errors_of(predictions: FloatArray, seconds: FloatArray) -> dict[str, float]:
    relative = np.abs(predictions / seconds - 1)
    return {
        "median": float(np.median(relative)), "p90": float(np.percentile(relative, 90)),
        "total": float(predictions.sum() / seconds.sum() - 1),
    }  # fmt: skip


def compare(one: Path, other: Path, shapes: tuple[str, str], device: str) -> dict[str, Any]:
    specs = [shape(f"qwen3-{name}") for name in shapes]
    (works, seconds), (other_works, other_seconds) = read(one), read(other)
    numbers = fit(specs[0], device, works, seconds)
    layers = specs[1].num_layers / specs[0].num_layers
    applied = (numbers[0], numbers[1], numbers[2] * layers, numbers[3])
    own = fit(specs[1], device, other_works, other_seconds)
    return {
        "steps": [len(works), len(other_works)], "numbers": numbers, "applied": applied,
        "numbers_of_other": own,
        "errors_on_one": errors_of(predicted(specs[0], device, numbers, works), seconds),
        "errors_on_other": errors_of(
            predicted(specs[1], device, applied, other_works), other_seconds
        ),
        "errors_of_own_fit": errors_of(
            predicted(specs[1], device, own, other_works), other_seconds
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs=2, type=Path)
    parser.add_argument("--one", default="0.6b")
    parser.add_argument("--other", default="8b")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    one, other = options.files
    record = compare(one, other, (options.one, options.other), options.device)
    print(json.dumps(record, indent=1))
    if options.json:
        record = {"benchmark": "sim/other_shape", "commit": commit(), **record}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
