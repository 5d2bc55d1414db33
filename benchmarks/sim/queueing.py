"""How often the simulator's 95% intervals cover the mean wait of M/G/1, over seeds 0..1999.

    python -m benchmarks.sim.queueing [--seeds 2000] [--processes 2] [--json FILE]

Each seed is 300 independent starts from the stationary state, two jobs each, served one at a
time by the engine on the simulated executor; its interval is Student's t over the starts (fewer
starts do not hold the level: waits are skewed). The
number of intervals that cover the exact mean (Pollaczek-Khinchine) is tested against 95% by an
exact binomial test at 0.1%.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy import stats

from nanofw.assembly.provenance import commit, machine
from tests.sim.queues import mean_wait, stationary_means

LENGTHS = np.array([10, 20, 40, 250])
LOADS = (0.5, 0.8, 0.9)
STARTS, JOBS = 300, 2


def covers(load: float, seed: int) -> bool:
    means = stationary_means(load, LENGTHS, STARTS, JOBS, seed)
    half = stats.t.ppf(0.975, STARTS - 1) * means.std(ddof=1) / np.sqrt(STARTS)
    return bool(abs(means.mean() - mean_wait(load, LENGTHS)) <= half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started, found = time.perf_counter(), {}
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for load in LOADS:
            hits = sum(pool.map(partial(covers, load), range(options.seeds), chunksize=20))
            p_value = float(stats.binomtest(hits, options.seeds, 0.95).pvalue)
            found[str(load)] = {
                "covered": hits, "of": options.seeds, "p_value": p_value, "rejected": p_value < 1e-3
            }  # fmt: skip
            print(f"load {load}: {hits} of {options.seeds} cover, p = {p_value:.3g}", flush=True)
    record = {
        "benchmark": "sim/queueing", "command": "python -m benchmarks.sim.queueing",
        "commit": commit(), "machine": machine(), "loads": found,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
