"""How often verdicts are wrong where nothing differs, and find what does, over whole experiments.

    python -m benchmarks.sim.error_rates [--experiments 1000] [--seconds S] [--json FILE]

Each experiment is judged by `analyse`, as `nanofw compare` does it, at load 0.8:

    synthetic   two random policies of other seeds on Poisson traffic, five repeats
    windows     the same on random windows of a trace (bursty, with prefixes), each of its own rate
    sweep       four more random policies beside the first: one wrong verdict counts as one
    every       two random policies, and all metrics decide
    A/A         the baseline's line against itself, in all of the above
    power       steps that take 10% longer on the same traffic; "worse" is right
    capacity    the largest rates of two random policies: 95% intervals that do not overlap (two
                independent ones do so in less than 1% of the cases)

The random policies of an experiment have seeds of their own, so both arms have one distribution.
With a share of wrong verdicts comes its 95% interval (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nanofw.assembly import Selection, build_workload, select
from nanofw.assembly.provenance import commit, machine
from nanofw.compare.analysis import Analysis, analyse
from nanofw.compare.experiment import AA, Experiment, ExperimentOptions
from nanofw.compare.objective import Objective
from nanofw.compare.rate_search import Probe, SustainedRate, Values, search
from nanofw.compare.results import Results
from nanofw.compare.run import RunResult, run_once
from nanofw.compare.runner import AA_SEED
from nanofw.compare.task import Task
from nanofw.config.load import load_config
from nanofw.schedulers.random import RandomOptions

REPEATS, LOAD, NUM_REQUESTS = 5, 0.8, 50
POISSON = {
    "name": "poisson", "num_requests": NUM_REQUESTS, "prompt": 32, "rate": 1.0,
    "output": {"distribution": "uniform", "low": 2, "high": 10},
}  # fmt: skip


def trace(path: Path) -> None:
    """Bursts of requests that share prefixes; 40 windows' worth."""
    rng, at = np.random.default_rng(0), 0.0
    lines = [{"trace": 1, "prefix_block_tokens": 16}]
    for i in range(40 * NUM_REQUESTS):
        at += float(rng.exponential(0.2 if i // 20 % 2 else 1.0))
        hashes = [int(rng.integers(5)), 100 + i]
        lines.append({"arrival": at, "prompt_tokens": 32, "prefix_hashes": hashes,
                      "output_tokens": int(rng.integers(2, 11))})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def chosen(workload: Mapping[str, Any], seconds_per_step: float = 0.01) -> Selection:
    values: dict[str, Any] = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 4, "max_model_len": 512},
        "scheduler": {"name": "random"},
        "kv_allocator": {"num_blocks": 512},
        "executor": {
            "name": "sim",
            "cost_model": {"name": "constant", "seconds_per_step": seconds_per_step},
        },
        "input": {"workload": dict(workload)},
    }
    return select(load_config(None, values=values))


def with_policy_seed(selection: Selection, seed: int) -> Selection:
    component = replace(selection.components["scheduler"], options=RandomOptions(seed=seed))
    return replace(selection, components={**selection.components, "scheduler": component})


class Rates:
    """Counts over experiments, by kind: how many there were, and how often it happened."""

    def __init__(self, folder: Path) -> None:
        path = folder / "trace.jsonl"
        trace(path)
        windows = {"name": "replay", "file": str(path), "num_requests": NUM_REQUESTS,
                   "part": "random"}  # fmt: skip
        self._poisson, self._windows = chosen(POISSON), chosen(windows)
        self._slow = chosen(POISSON, 0.011)
        burst = ExperimentOptions(arms={"a": {}}, metrics=("e2e.mean",))
        self._capacity = run_once(self._poisson, burst, seed=0, time_scale=0.0).capacity
        self.num, self.hits = Counter[str](), Counter[str]()

    def note(self, kind: str, happened: bool) -> None:
        self.num[kind] += 1
        self.hits[kind] += happened

    def synthetic(self, number: int) -> None:
        self._null("synthetic", number, self._poisson, 2)

    def windows(self, number: int) -> None:
        self._null("windows", number, self._windows, 2)

    def sweep(self, number: int) -> None:
        self._null("sweep", number, self._poisson, 6)

    def every(self, number: int) -> None:
        self._null("every", number, self._poisson, 2, primary=None)

    def power(self, number: int) -> None:
        arms = {"a": with_policy_seed(self._poisson, number),
                "b": with_policy_seed(self._slow, number)}  # fmt: skip
        analysis = self._judged(arms, number, "e2e.mean", aa=False)
        self.note("power", any(row.verdict == "worse" for row in analysis.rows))

    def capacity(self, number: int) -> None:
        found = [self._sustained(with_policy_seed(self._poisson, 2 * number + i), number, i)
                 for i in range(2)]  # fmt: skip
        self.note("capacity", found[0].low > found[1].high or found[1].low > found[0].high)

    def _null(
        self, kind: str, number: int, base: Selection, num_arms: int,
        primary: str | None = "e2e.mean",
    ) -> None:  # fmt: skip
        arms = {f"r{i}": with_policy_seed(base, number * 10 + i) for i in range(num_arms)}
        analysis = self._judged(arms, number, primary, aa=True)
        wrong = [row.arm for row in analysis.rows if row.verdict in ("better", "worse")]
        self.note(kind, any(arm != AA for arm in wrong))
        self.note("A/A", AA in wrong)

    def _judged(
        self, arms: Mapping[str, Selection], number: int, primary: str | None, *, aa: bool
    ) -> Analysis:
        options = ExperimentOptions(
            arms={name: {} for name in arms}, primary=primary, repeats=REPEATS, aa=aa,
            metrics=("e2e.mean", "ttft.mean", "queue.mean", "throughput.tokens"),
            seed=number * REPEATS, processes=1,
        )  # fmt: skip
        results = Results(Experiment(options, dict.fromkeys(arms, ())), dict(arms))
        names = [*arms, *([AA] if aa else [])]
        for repeat in range(REPEATS):
            for name in names:
                seed = options.seed + repeat + (AA_SEED if name == AA else 0)
                run = self._run(arms[next(iter(arms)) if name == AA else name], options, seed)
                results.runs.setdefault((None, name), []).append(run)
                results.order.append(Task(name, None, repeat, seed, 1.0))
        return analyse(results)

    def _run(self, selection: Selection, options: ExperimentOptions, seed: int) -> RunResult:
        rate = build_workload(selection, seed=seed).rate or 1.0
        return run_once(selection, options, seed=seed, time_scale=rate / (LOAD * self._capacity))

    def _sustained(self, selection: Selection, number: int, arm: int) -> SustainedRate:
        options = ExperimentOptions(arms={"a": {}}, metrics=("queue.mean",), primary=None)
        asks = search([Objective(metric="queue.mean", max=0.03)], self._capacity,
                      tolerance=0.05, max_seeds=24)  # fmt: skip
        answers: dict[Probe, Values] | None = None
        while True:
            try:
                probes = next(asks) if answers is None else asks.send(answers)
            except StopIteration as end:
                return end.value
            answers = {}
            for rate, seed in probes:
                traffic = (2 * number + arm) * 1000 + seed
                run = run_once(selection, options, seed=traffic, time_scale=1 / rate)
                answers[rate, seed] = run.values


def line(kind: str, num: int, hits: int) -> dict[str, Any]:
    interval = stats.binomtest(hits, num).proportion_ci(0.95)
    return {"kind": kind, "experiments": num, "share": round(hits / num, 4),
            "interval": [round(interval.low, 4), round(interval.high, 4)]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of processor time")
    parser.add_argument("--kinds", default="synthetic,windows,sweep,every,power,capacity")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates, began = Rates(Path(folder)), time.process_time()
        kinds: list[Callable[[int], None]] = [getattr(rates, k) for k in options.kinds.split(",")]
        for number in range(options.experiments):
            for kind in kinds:
                if time.process_time() - began < options.seconds:
                    kind(number)
    lines = [line(kind, num, rates.hits[kind]) for kind, num in rates.num.items()]
    print("\n".join(map(json.dumps, lines)))
    if options.json is not None:
        record = {"benchmark": "sim/error_rates", "commit": commit(), "machine": machine(),
                  "cpu_seconds": round(time.process_time() - began, 1), "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
