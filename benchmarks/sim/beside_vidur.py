"""Vidur and nanofw over the same trace and the same steps: latencies and processor time.

    python -m benchmarks.sim.beside_vidur PYTHON TRACE.csv [--requests 2000] [--json FILE]

PYTHON imports Vidur's source (its scheduler `sarathi`); the trace is one of those that come with it
(columns arrived_at, num_prefill_tokens, num_decode_tokens). A step takes 10 ms and 30 us per token
in both, since Vidur's own predictor needs profiles: what is compared is who runs when.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanofw.assembly import build, select
from nanofw.assembly.provenance import commit, machine
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import Workload
from nanofw.measure.drive import drive

LONGEST = 4096
Job = tuple[float, int, int]
"""Arrival, tokens of prompt and output."""


class Jobs(Workload):
    """The requests of the trace."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    @property
    def num_requests(self) -> int:
        return len(self._jobs)

    def initial(self) -> Iterator[Request]:
        for number, (arrival, prompt, output) in enumerate(self._jobs):
            sampling = SamplingParams(max_tokens=output, ignore_eos=True)
            tokens = np.full(prompt, 5, np.int32)
            yield Request(
                id=str(number), prompt_token_ids=tokens, sampling=sampling, arrival=arrival
            )


def read(path: Path, count: int, speed: float) -> list[Job]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:count]
    jobs: list[Job] = []
    for row in rows:
        output = min(max(1, int(float(row["num_decode_tokens"]))), LONGEST - 1)
        prompt = min(max(1, int(float(row["num_prefill_tokens"]))), LONGEST - output)
        jobs.append((float(row["arrived_at"]) / speed, prompt, output))
    return jobs


def nanofw_run(sizes: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    values = {
        "model": {"path": "shape:qwen3-8b"},
        "engine": {
            "max_num_seqs": sizes["rows"], "max_num_batched_tokens": sizes["budget"],
            "max_model_len": LONGEST, "overlap": False,
        },
        "kv_allocator": {
            "name": "paged", "num_blocks": sizes["num_blocks"], "block_size": sizes["block_size"],
        },
        "executor": {"name": "sim", "cost_model": {
            "name": "constant", "seconds_per_step": sizes["per_step"],
            "seconds_per_token": sizes["per_token"]}},
    }  # fmt: skip
    selection = select(load_config(None, values=values))
    found: dict[int, list[float | None]] = {}
    began = time.process_time()
    with build(selection) as engine:
        for step in drive(engine, Jobs(jobs)):
            for o in step.finished:
                found[int(o.id)] = [o.arrival, o.first_token, o.finished, o.num_preemptions]
    seconds = time.process_time() - began
    return {"process_s": seconds, "requests": [found[i] for i in range(len(jobs))]}


def vidur_run(python: str, sizes: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
        with (folder / "trace.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([names, *jobs])
        (folder / "machine.json").write_text(json.dumps(sizes), encoding="utf-8")
        side = Path(__file__).with_name("vidur_side.py")
        files = [folder / "machine.json", folder / "trace.csv", folder / "result.json"]
        subprocess.run([python, str(side), *map(str, files)], check=True)
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def latencies(result: dict[str, Any]) -> dict[str, float]:
    values = np.array(result["requests"], float)
    first, last = values[:, 1] - values[:, 0], values[:, 2] - values[:, 0]
    return {
        "ttft_mean": float(first.mean()), "ttft_p90": float(np.percentile(first, 90)),
        "e2e_mean": float(last.mean()), "e2e_p90": float(np.percentile(last, 90)),
        "preemptions": int(values[:, 3].sum()), "process_s": round(result["process_s"], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument(
        "--speed", type=float, default=2.0, help="how many times as fast requests arrive"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = read(options.trace, options.requests, options.speed)
    lines: list[dict[str, Any]] = []
    for num_blocks in (20000, 4000):
        sizes = {"rows": 128, "budget": 512, "num_blocks": num_blocks, "block_size": 16,
                 "per_step": 0.01, "per_token": 3e-5, "longest": LONGEST}  # fmt: skip
        theirs, ours = vidur_run(options.python, sizes, jobs), nanofw_run(sizes, jobs)
        gaps = np.abs(
            np.array(theirs["requests"], float)[:, 1:3] - np.array(ours["requests"], float)[:, 1:3]
        )
        lines.append({
            "num_blocks": num_blocks, "vidur": latencies(theirs), "nanofw": latencies(ours),
            "equal_requests": int((gaps.max(axis=1) < 1e-6).sum()),
            "largest_gap_s": float(gaps.max()),
        })  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    if options.json:
        record = {"benchmark": "sim/beside_vidur", "commit": commit(), "machine": machine(),
                  "requests": len(jobs), "speed": options.speed, "trace": options.trace.name,
                  "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
