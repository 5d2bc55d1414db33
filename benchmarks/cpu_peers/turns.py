"""Output tokens per processor second on a CPU, engines taking turns pass by pass.

    python benchmarks/cpu_peers/turns.py [--model FOLDER] [--engines nanofw transformers vllm]
        [--workloads one small mixed32] [--threads 1] [--rounds 5] [--json FILE]
        [--python vllm=/path/to/python ...]

Each engine is a process of its own, and may have an environment of its own (`--python`). All are
ready before the first pass; then each computes one pass, forwards in even rounds and backwards in
odd ones, so that what else the machine does concerns all alike. Without `--model`, a Qwen3 of 60M
random parameters is written to a temporary folder. Tokens are compared with those of the first
engine: all are greedy, and float32. README.md says how the peers are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Engine:
    """A process that waits for its turn."""

    def __init__(self, name: str, python: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(HERE / "engines.py"), name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=log.open("w", encoding="utf-8"),
        )  # fmt: skip
        self._log = log

    def answer(self, word: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(word):
            raise SystemExit(f"{self.name} died:\n{self._log.read_text()[-2000:]}")
        return json.loads(line.removeprefix(word))

    def compute(self, shift: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{shift}\n")
        self._process.stdin.flush()
        return self.answer("PASS")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take_turns(
    names: list[str], pythons: dict[str, str], model: Path, load: str, options: argparse.Namespace
) -> dict[str, Any]:
    """All passes of one workload."""
    engines: list[Engine] = []
    passes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    starts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as logs:
        for name in names:
            arguments = [str(model), load, str(options.threads)]
            python = pythons.get(name, sys.executable)
            engines.append(Engine(name, python, arguments, Path(logs) / name))
            starts[name] = engines[-1].answer("READY")
        for shift in range(options.rounds):
            for engine in engines if shift % 2 == 0 else engines[::-1]:
                passes[engine.name].append(engine.compute(shift + 1))
        for engine in engines:
            engine.end()
    return {"workload": load, "starts": starts, "passes": dict(passes)}


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each engine."""
    first = next(iter(found["passes"].values()))
    lines: list[dict[str, Any]] = []
    for name, passes in found["passes"].items():
        count = sum(map(len, passes[0]["tokens"]))
        rates = [count / one["cpu"] for one in passes]
        walls = [count / one["wall"] for one in passes]
        pairs = [
            (mine == theirs)
            for one, other in zip(passes, first, strict=True)
            for mine, theirs in zip(one["tokens"], other["tokens"], strict=True)
        ]
        lines.append(
            {
                "workload": found["workload"],
                "engine": name,
                "tokens": count,
                "median_per_cpu_s": round(statistics.median(rates), 1),
                "per_cpu_s": [round(rate, 1) for rate in rates],
                "median_per_s": round(statistics.median(walls), 1),
                "per_s": [round(rate, 1) for rate in walls],
                "start_cpu_s": round(found["starts"][name]["cpu"], 2),
                "peak_mib": round(max(one["mib"] for one in passes)),
                "requests_with_equal_tokens": f"{sum(pairs)} of {len(pairs)}",
            }
        )
    return lines


def write_model(folder: Path) -> Path:
    """The 60M model of `benchmarks/offline_cpu`."""
    sys.path.insert(0, str(HERE.parent / "offline_cpu"))
    import bench

    return bench.write_model(folder / "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engines", nargs="+", default=["nanofw", "transformers"])
    parser.add_argument("--workloads", nargs="+", default=["one", "small", "mixed32"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    options = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in options.python)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or write_model(Path(temporary))
        for load in options.workloads:
            found = take_turns(options.engines, pythons, model, load, options)
            lines += summary(found)
            for line in lines[-len(options.engines) :]:
                print(json.dumps(line), flush=True)
    if options.json:
        facts = {"threads": options.threads, "load_average": os.getloadavg(),
                 "command": sys.argv}  # fmt: skip
        content = {**facts, "lines": lines}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
