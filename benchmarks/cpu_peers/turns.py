"""Output tokens per second on a CPU, of the wall and of the processor, engines taking turns.

    python benchmarks/cpu_peers/turns.py [--model FOLDER] [--engines nanofw transformers vllm]
        [--workloads one small mixed32] [--threads 1] [--rounds 5] [--busy 0] [--json FILE]
        [--python vllm=/path/to/python ...]

Each engine is a process of its own, and may have an environment of its own (`--python`). All are
ready before the first pass; then each computes one pass, forwards in even rounds and backwards in
odd ones, so that what else the machine does concerns all alike. `--busy` runs other processes that
only compute. Without `--model`, a Qwen3 of 60M random parameters is written to a temporary folder.
Tokens are compared with those of the first engine: all are greedy, and float32. README.md says how
the peers are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).parent


Passes: TypeAlias = dict[str, list[dict[str, Any]]]
"""What the passes of one workload took, by engine."""


class Engine:
    """A process that waits for its turn.

    Attributes:
        start: what it took until the engine was ready, and its version.
    """

    def __init__(self, name: str, python: str, model: Path, threads: int, log: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(HERE / "engines.py"), name, str(model), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=log.open("w", encoding="utf-8"),
        )  # fmt: skip
        self._log = log
        self.start: dict[str, Any] = self._answer("READY")

    def compute(self, load: str, shift: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{load} {shift}\n")
        self._process.stdin.flush()
        return self._answer("PASS")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self, word: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(word):
            raise SystemExit(f"{self.name} died:\n{self._log.read_text()[-2000:]}")
        return json.loads(line.removeprefix(word))


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes beside the engines that only compute."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def take_turns(engines: list[Engine], load: str, rounds: int) -> Passes:
    passes: Passes = {engine.name: [] for engine in engines}
    for shift in range(rounds):
        for engine in engines if shift % 2 == 0 else engines[::-1]:
            passes[engine.name].append(engine.compute(load, shift + 1))
    return passes


def summary(engines: list[Engine], load: str, found: Passes) -> list[dict[str, Any]]:
    """A line for each engine."""
    first = found[engines[0].name]
    lines: list[dict[str, Any]] = []
    for engine in engines:
        passes = found[engine.name]
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
                "workload": load,
                "engine": f"{engine.name} {engine.start['version']}",
                "tokens": count,
                "median_per_cpu_s": round(statistics.median(rates), 1),
                "per_cpu_s": [round(rate, 1) for rate in rates],
                "median_per_s": round(statistics.median(walls), 1),
                "per_s": [round(rate, 1) for rate in walls],
                "start_cpu_s": round(engine.start["cpu"], 2),
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
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    options = parser.parse_args()
    pythons = dict(pair.split("=", 1) for pair in options.python)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or write_model(Path(temporary))
        engines = [
            Engine(name, pythons.get(name, sys.executable), model, options.threads,
                   Path(temporary) / f"{name}.log")
            for name in options.engines
        ]  # fmt: skip
        with busy_processes(options.busy):
            for load in options.workloads:
                lines += summary(engines, load, take_turns(engines, load, options.rounds))
                for line in lines[-len(engines) :]:
                    print(json.dumps(line), flush=True)
        for engine in engines:
            engine.end()
    if options.json:
        facts = {"threads": options.threads, "busy": options.busy,
                 "load_average": os.getloadavg(), "command": sys.argv}  # fmt: skip
        content = {**facts, "lines": lines}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
