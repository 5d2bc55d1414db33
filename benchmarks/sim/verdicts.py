"""How often `nanofw compare` is wrong where nothing differs, and finds what does.

    python benchmarks/sim/verdicts.py [--experiments 1000] [--processes 2] [--json FILE]

Each experiment is `REPEATS` pairs of runs at load 0.7. Two kinds: the same engine on other
arrivals in both arms (every "better" and "worse" is a false positive; alpha 5%),
and the same arrivals with every step's cost times 1.1 in one arm (the verdict should be
"worse"). The primary metric is mean E2E.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nanofw.assembly import Selection, select
from nanofw.assembly.provenance import commit, machine
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.run import run_once
from nanofw.compare.runner import AA_SEED
from nanofw.compare.statistics import paired_effect, verdict
from nanofw.config.load import load_config

REPEATS, LOAD, NUM_REQUESTS, METRIC = 10, 0.7, 150, "e2e.mean"
OPTIONS = ExperimentOptions(arms={"base": {}}, metrics=(METRIC,), primary=METRIC)


def selection(slower: float) -> Selection:
    values: dict[str, Any] = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 4, "max_model_len": 512},
        "kv_allocator": {"name": "paged", "num_blocks": 512},
        "executor": {
            "name": "sim",
            "cost_model": {"name": "constant", "seconds_per_step": 0.01 * slower},
        },
        "input": {
            "workload": {
                "name": "poisson", "num_requests": NUM_REQUESTS, "prompt": 32, "rate": 1.0,
                "output": {"distribution": "uniform", "low": 2, "high": 10},
            }
        },
    }  # fmt: skip
    return select(load_config(None, values=values))


_made: dict[float, Selection] = {}


def mean_e2e(task: tuple[float, int, float]) -> float:
    slower, seed, time_scale = task
    if slower not in _made:
        _made[slower] = selection(slower)
    return run_once(_made[slower], OPTIONS, seed=seed, time_scale=time_scale).values[METRIC]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started, num = time.perf_counter(), options.experiments * REPEATS
    capacity = run_once(selection(1.0), OPTIONS, seed=0, time_scale=0.0).capacity
    scale = 1.0 / (LOAD * capacity)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        tasks = [(1.0, i, scale) for i in range(num)]
        tasks += [(1.0, i + AA_SEED, scale) for i in range(num)]
        tasks += [(1.1, i, scale) for i in range(num)]
        values = list(pool.map(mean_e2e, tasks, chunksize=50))
    base, again, slower = values[:num], values[num : 2 * num], values[2 * num :]
    wrong = sum(word in ("better", "worse") for word in verdicts(base, again))
    hits = sum(word == "worse" for word in verdicts(base, slower))
    record = {
        "benchmark": "sim/verdicts", "command": "python benchmarks/sim/verdicts.py",
        "commit": commit(), "machine": machine(), "experiments": options.experiments,
        "repeats": REPEATS, "false_positives": wrong / options.experiments,
        "found_10_percent_slower": hits / options.experiments,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    print(json.dumps(record, indent=1))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def verdicts(base: list[float], other: list[float]) -> list[str]:
    found: list[str] = []
    for i in range(0, len(base), REPEATS):
        pair = base[i : i + REPEATS], other[i : i + REPEATS]
        effect = paired_effect(*pair, by_ratio=True, alpha=0.05, margin=OPTIONS.margin)
        found.append(verdict(effect, effect.p_value, higher_is_better=False, alpha=0.05))
    return found


if __name__ == "__main__":
    main()
