"""An experiment from Python: run it, read its rows, ask why a request waited.

    python examples/compare/analyse.py

Needs `nanofw[compare]`; takes some seconds.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from nanofw.compare import analyse, load_experiment, run_experiment
from nanofw.decisions import read_log, replay_log, tell_story

EXPERIMENT = """
base: sim
config:
  model: {path: "shape:qwen3-8b"}
  engine: {max_num_seqs: 4, max_model_len: 4096}
  executor: {name: sim, cost_model: {name: roofline, device: h100-sxm}}
arms:
  fcfs: {}
  shortest: {scheduler: {name: shortest_job_first, by: output}}
workload:
  name: poisson
  num_requests: 100
  guess_noise: 0.0
  output: {distribution: lognormal, median: 20, sigma: 1.2, high: 300}
loads: [0.9]
repeats: 3
aa: false
processes: 1
"""


def main(folder: Path) -> None:
    path = folder / "experiment.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    changes = [f"records={folder / 'records'}", f"decisions={folder / 'logs'}"]
    results = run_experiment(load_experiment(path, changes))
    for row in analyse(results).rows:
        if row.metric == "e2e.mean":
            print(f"{row.arm}: mean E2E {row.mean:.3f} s, {row.verdict or 'the baseline'}")

    # with pandas: pandas.concat(map(pandas.read_csv, (folder / "records").glob("*.csv")))
    with (folder / "records" / "fcfs_0.9_1.csv").open(encoding="utf-8", newline="") as file:
        requests = list(csv.DictReader(file))
    slowest = max(requests, key=lambda line: float(line["scheduled"]) - float(line["arrival"]))

    log = read_log(folder / "logs" / "fcfs_0.9_1.jsonl")
    story = tell_story(log, slowest["id"])
    print(f"request {slowest['id']} waited longest: {len(story.parts)} parts of its story")
    replayed = replay_log(log, ["scheduler.name=shortest_job_first"])
    print(f"shortest job first decides the same in {replayed.num_calls} plans, then otherwise")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
