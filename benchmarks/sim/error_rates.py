"""How often verdicts are wrong where nothing differs, and find what does, over whole experiments.

    python -m benchmarks.sim.error_rates [--experiments 1000] [--processes N] [--json FILE]

`--first` goes on where an earlier part of the same experiments ended.

Each experiment is judged by `analyse`, as `nanofw compare` does it, at load 0.8:

    synthetic   two random policies of other seeds on Poisson traffic, five repeats
    windows     the same on random windows of a trace (bursty, with prefixes), each of its own rate
    sweep       four more random policies beside the first: one wrong verdict counts as one
    every       two random policies, and all metrics decide
    A/A         the baseline's line against itself, in all of the above
    until       two random policies, up to 20 repeats, stopped when the interval is narrow enough
    peeking     the same, and the reader stops at the look that he likes: any look counts
    fixed looks the same looks as fixed ones, each at the whole alpha: what `until` avoids
    power       steps that take 2% longer on the same traffic; "worse" is right
    until power the same, stopped as above
    capacity    queues whose largest rate is known: 95% intervals that miss it
    rates       the largest rates of two equal arms: intervals of 95% each, whose distance is
                greater than that of their ends added in quadrature

The random policies of an experiment have seeds of their own, so both arms have one distribution.
With a share of wrong verdicts comes its 95% interval (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nanofw.assembly import Selection, build_workload, select
from nanofw.assembly.provenance import commit, machine
from nanofw.compare.analysis import analyse
from nanofw.compare.experiment import AA, Experiment, ExperimentOptions
from nanofw.compare.looks import wide_effects
from nanofw.compare.objective import Objective
from nanofw.compare.rate_search import search
from nanofw.compare.results import Results
from nanofw.compare.run import RunResult, run_once
from nanofw.compare.runner import AA_SEED
from nanofw.compare.task import Task
from nanofw.config.load import load_config
from nanofw.machine import num_usable_cores
from nanofw.schedulers.random import RandomOptions
from tests.compare.test_rate_search import found as searched
from tests.compare.test_rate_search import known_rate, queue

REPEATS, LOAD, NUM_REQUESTS = 5, 0.8, 40
MOST, LOOKS, UNTIL = 20, (5, 10, 20), 0.03
"""Of experiments that stop when their interval is narrow enough."""
SLOWER = 1.02
METRICS = ("e2e.mean", "ttft.mean", "queue.mean", "throughput.tokens")
WRONG = ("better", "worse")
POISSON = {
    "name": "poisson", "num_requests": NUM_REQUESTS, "prompt": 32, "rate": 1.0,
    "output": {"distribution": "uniform", "low": 2, "high": 10},
}  # fmt: skip


def trace(path: Path, number: int) -> None:
    """Bursts of requests that share prefixes, of random lengths; one window for each repeat.

    Each experiment has a trace of its own: on windows of one trace the two policies do differ, as
    the mean over all of its windows is not zero. Bursts of one length would be at the same places
    of all windows, and then policies that rank by place differ, too.
    """
    rng, at, gap = np.random.default_rng(number), 0.0, 1.0
    lines: list[dict[str, Any]] = [{"trace": 1, "prefix_block_tokens": 16}]
    for i in range(REPEATS * NUM_REQUESTS):
        if rng.random() < 0.05:
            gap = 1.2 - gap
        at += float(rng.exponential(gap))
        hashes = [int(rng.integers(5)), 100 + i]
        lines.append({"arrival": at, "prompt_tokens": 32, "prefix_hashes": hashes,
                      "output_tokens": int(rng.integers(2, 11))})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def chosen(
    workload: Mapping[str, Any], seconds_per_step: float = 0.01, allocator: str = "paged"
) -> Selection:
    values: dict[str, Any] = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 4, "max_model_len": 512},
        "scheduler": {"name": "random"},
        "kv_allocator": {"name": allocator, "num_blocks": 512},
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


class Experiments:
    """What came of one experiment of each kind: pairs of a kind and whether it happened."""

    def __init__(self, folder: Path) -> None:
        self._poisson = chosen(POISSON)
        self._slow = chosen(POISSON, 0.01 * SLOWER)
        self._trace = folder / f"{os.getpid()}.jsonl"
        trace(self._trace, 0)
        replay = {"name": "replay", "file": str(self._trace), "num_requests": NUM_REQUESTS,
                  "part": "random"}  # fmt: skip
        self._replay = chosen(replay, allocator="paged_prefix")
        burst = ExperimentOptions(arms={"a": {}}, metrics=("e2e.mean",))
        self._capacity = run_once(self._poisson, burst, seed=0, time_scale=0.0).capacity

    def engine(self, number: int) -> list[tuple[str, bool]]:
        """All kinds in which an engine serves; they share runs."""
        arms = {f"r{i}": with_policy_seed(self._poisson, number * 10 + i) for i in range(6)}
        slow = {"r0": arms["r0"], "slow": with_policy_seed(self._slow, number * 10)}
        runs = self._runs({**arms, **slow}, number, REPEATS)
        found: list[tuple[str, bool]] = []
        pair = dict(list(arms.items())[:2])
        found += self._null("synthetic", runs, pair)
        found += self._null("sweep", runs, arms)
        found += self._null("every", runs, pair, primary=None)
        verdicts = _verdicts(_results(slow, runs, REPEATS, aa=False))
        found.append(("power", "worse" in verdicts))
        return [*found, *self._until(number, {**pair, "slow": slow["slow"]}, runs)]

    def windows(self, number: int) -> Iterator[tuple[str, bool]]:
        trace(self._trace, number)
        arms = {f"r{i}": with_policy_seed(self._replay, number * 10 + i) for i in range(2)}
        # The baseline against itself would be on the same windows, in another order.
        runs = self._runs(arms, number, REPEATS, aa=False)
        found = _verdicts(_results(arms, runs, REPEATS, aa=False))
        yield "windows", bool(set(found) & set(WRONG))

    def _until(
        self, number: int, arms: Mapping[str, Selection], runs: dict[str, list[RunResult]]
    ) -> Iterator[tuple[str, bool]]:
        more = self._runs(arms, number, MOST, REPEATS, aa=False)
        whole = {name: runs[name] + more[name] for name in arms}
        for kind, name, sought in (("until", "r1", WRONG), ("until power", "slow", ("worse",))):
            pair = {"r0": arms["r0"], name: arms[name]}
            looks = [_results(pair, whole, num, aa=False, until=UNTIL) for num in LOOKS]
            found = [bool(set(_verdicts(results)) & set(sought)) for results in looks]
            stop = next((i for i, look in enumerate(looks) if not wide_effects(look, None)), -1)
            yield kind, found[stop]
            yield f"{kind}: stopped early", stop != -1 and LOOKS[stop] < MOST
            if kind == "until":
                yield "peeking", any(found)
                fixed = [_verdicts(_results(pair, whole, num, aa=False)) for num in LOOKS]
                yield "fixed looks", any(set(one) & set(WRONG) for one in fixed)

    def _null(
        self, kind: str, runs: Mapping[str, list[RunResult]], arms: Mapping[str, Selection],
        primary: str | None = "e2e.mean",
    ) -> Iterator[tuple[str, bool]]:  # fmt: skip
        analysis = analyse(_results(arms, runs, REPEATS, aa=True, primary=primary))
        wrong = [row.arm for row in analysis.rows if row.verdict in WRONG]
        yield kind, any(arm != AA for arm in wrong)
        yield f"A/A ({kind})", AA in wrong

    def _runs(
        self, arms: Mapping[str, Selection], number: int, end: int, begin: int = 0, *,
        aa: bool = True,
    ) -> dict[str, list[RunResult]]:  # fmt: skip
        """Runs `begin` to `end` of each arm, and of the first again on other arrivals."""
        found: dict[str, list[RunResult]] = {}
        for name in [*arms, *([AA] if aa else [])]:
            selection = arms[next(iter(arms)) if name == AA else name]
            seeds = [number * MOST + i + (AA_SEED if name == AA else 0) for i in range(begin, end)]
            found[name] = [self._run(selection, seed) for seed in seeds]
        return found

    def _run(self, selection: Selection, seed: int) -> RunResult:
        rate = build_workload(selection, seed=seed).rate or 1.0
        options = ExperimentOptions(arms={"a": {}}, metrics=METRICS)
        return run_once(selection, options, seed=seed, time_scale=rate / (LOAD * self._capacity))

    def capacity(self, number: int) -> Iterator[tuple[str, bool]]:
        """On queues with one server: first Poisson and fixed work, then work that varies."""
        for lengths, limit in ((np.array([0.1]), 0.2), (np.array([0.04, 0.06, 0.1, 0.2]), 0.25)):
            known = known_rate(lengths, limit)
            one, other = (
                searched(
                    search([Objective(metric="queue.mean", max=limit)], 1 / float(lengths.mean()),
                           tolerance=0.02, max_seeds=60),
                    queue(lengths, 5000, 2 * number + arm),
                )
                for arm in range(2)
            )  # fmt: skip
            yield "capacity", not one.low <= known <= one.high
            halves = [(rate.high - rate.low) / 2 for rate in (one, other)]
            yield "rates", abs(one.rate - other.rate) > math.hypot(*halves)


def _results(
    arms: Mapping[str, Selection], runs: Mapping[str, list[RunResult]], num: int, *,
    aa: bool, primary: str | None = "e2e.mean", until: float | None = None,
) -> Results:  # fmt: skip
    """The first `num` runs of each arm as those of an experiment."""
    options = ExperimentOptions(
        arms={name: {} for name in arms}, primary=primary, aa=aa, metrics=METRICS, until=until,
        repeats=MOST if until else num,
    )  # fmt: skip
    results = Results(Experiment(options, dict.fromkeys(arms, ())), dict(arms))
    for name in [*arms, *([AA] if aa else [])]:
        results.runs[None, name] = runs[name][:num]
        results.order += [Task(name, None, repeat, repeat, 1.0) for repeat in range(num)]
    return results


def _verdicts(results: Results) -> list[str | None]:
    return [row.verdict for row in analyse(results).rows]


_experiments: Experiments | None = None


def prepare(folder: str) -> None:
    """A worker starts."""
    global _experiments
    _experiments = Experiments(Path(folder))


def carry_out(kind: str, number: int) -> list[tuple[str, bool]]:
    assert _experiments is not None
    return list(getattr(_experiments, kind)(number))


def line(kind: str, num: int, hits: int) -> dict[str, Any]:
    interval = stats.binomtest(hits, num).proportion_ci(0.95)
    return {"kind": kind, "experiments": num, "share": round(hits / num, 4),
            "interval": [round(interval.low, 4), round(interval.high, 4)]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first experiment")
    parser.add_argument("--processes", type=int, default=num_usable_cores())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then no more begin")
    parser.add_argument("--kinds", default="capacity,windows,engine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    num, hits, began, cut = Counter[str](), Counter[str](), time.monotonic(), False
    numbers = range(options.first, options.first + options.experiments)
    tasks = itertools.product(options.kinds.split(","), numbers)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            options.processes, get_context("spawn"), initializer=prepare, initargs=(folder,)
        ) as pool,
    ):
        waiting: set[Future[list[tuple[str, bool]]]] = set()
        while True:
            cut = cut or time.monotonic() - began > options.seconds
            while not cut and len(waiting) < 2 * options.processes:
                task = next(tasks, None)
                if task is None:
                    break
                waiting.add(pool.submit(carry_out, *task))
            if not waiting:
                break
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                for kind, happened in future.result():
                    num[kind] += 1
                    hits[kind] += happened
    lines = [line(kind, num[kind], hits[kind]) for kind in num]
    print("\n".join(map(json.dumps, lines)))
    if options.json is not None:
        record = {"benchmark": "sim/error_rates", "commit": commit(), "machine": machine(),
                  "seconds": round(time.monotonic() - began, 1), "first": options.first,
                  "processes": options.processes,
                  "until": UNTIL, "slower": SLOWER, "cut": cut, "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
