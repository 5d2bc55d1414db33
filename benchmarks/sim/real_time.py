"""TTFT and ITL of a simulated server in real time, as its clients see them over HTTP, against the
same traffic in virtual time.

    python -m benchmarks.sim.real_time [--rate 4] [--requests 120] [--seeds 3] [--json FILE]

The server is a process of its own; the load generator is `nanofw bench serve`, the prediction one
run of `nanofw compare`. The aim: each figure within 3% plus 1 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanofw.assembly import Selection, select
from nanofw.assembly.provenance import commit, machine
from nanofw.bench.serve.options import ServeOptions
from nanofw.bench.serve.runs import serve_runs
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.run import run_once
from nanofw.config.load import load_config

METRICS = tuple(f"{name}.{s}" for name in ("ttft", "itl", "tpot", "e2e")
                for s in ("mean", "p50", "p99"))  # fmt: skip


def write_config(folder: Path, options: argparse.Namespace) -> Path:
    config = {
        "model": {"path": "shape:qwen3-8b"},
        "engine": {"max_num_seqs": 32, "max_model_len": 4096},
        "executor": {"name": "sim", "cost_model": {"name": "roofline", "device": options.device}},
        "sampling": {"max_tokens": 64},
        "server": {"port": 0, "log_requests": False},
        "input": {"workload": {
            "name": "poisson", "rate": options.rate, "num_requests": options.requests,
            "prompt": {"distribution": "lognormal", "median": 300, "sigma": 1.0, "high": 3000},
            "output": {"distribution": "uniform", "low": 16, "high": 128},
        }},
    }  # fmt: skip
    path = folder / "server.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@contextmanager
def serving(path: Path) -> Generator[str]:
    """The URL of a server of the configuration, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw", "serve", str(path)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    url = ""
    try:
        for line in process.stderr:
            if found := re.search(r"listening at (http://\S+?),?\s", line):
                url = found[1]
            if "ready" in line:
                break
        assert url, "the server did not start"
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def predicted(selection: Selection, seed: int) -> dict[str, float]:
    """The same figures in virtual time."""
    options = ExperimentOptions(arms={"sim": {}}, metrics=METRICS, repeats=1, primary=None)
    return run_once(selection, options, seed=seed, time_scale=1.0).values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="a100-80gb")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_config(Path(folder), options)
        selection = select(load_config(path))
        with serving(path) as url:
            settings = ServeOptions(url=url, repeats=options.seeds)
            for run in serve_runs(selection, settings):
                expected = predicted(selection, run.seed)
                line = {"seed": run.seed, "notes": run.notes, "loop_late": run.loop_lateness}
                for name in METRICS:
                    quantity, statistic = name.split(".")
                    seen = run.latencies[quantity][statistic]
                    off = abs(seen - expected[name])
                    is_met = off <= 0.03 * expected[name] + 0.001
                    line[name] = {"seen": seen, "predicted": expected[name], "met": is_met}
                    met = "" if is_met else "NOT MET"
                    print(f"seed {run.seed}  {name:10}  predicted {1e3 * expected[name]:9.2f} ms  "
                          f"seen {1e3 * seen:9.2f} ms  {met}", flush=True)  # fmt: skip
                late = run.loop_lateness
                print(
                    f"sleeps here were late by {1e3 * late['mean']:.1f} ms in the mean, "
                    f"{1e3 * late['max']:.1f} ms at most",
                    flush=True,
                )
                for note in run.notes:
                    print(f"note: {note}")
                runs.append(line)
    record = {
        "benchmark": "sim/real_time", "command": " ".join(sys.argv), "commit": commit(),
        "machine": machine(), "rate": options.rate, "requests": options.requests, "runs": runs,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
