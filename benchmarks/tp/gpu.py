"""Tensor parallelism on the GPUs of this machine: right, and how fast. One table at the end.

    MODELS=folder [NANO_VLLM=checkout] [OUT=folder] python benchmarks/tp/gpu.py [SECONDS] SECTION...

Sections, run in the order in which they are named until SECONDS (default 530) are over:

    all_reduce   microseconds of an all-reduce, eager and in a graph, by NCCL and in one shot
    parity       1 and 2 ranks: tokens in float32, and the error of bfloat16 against float32
    control      what a decode step of 256 rows costs between the engine and its ranks
    kill         a killed rank: seconds to the error, what is left, a restart
    RUN          ENGINE:MODEL:RANKS[:one_shot], ENGINE as `benchmarks/gpu/engine_run.py` takes it,
                 MODEL 0.6b, 8b or 32b: one pass of nano-vllm's bench.py workload, and
                 milliseconds of a decode step at several batch sizes

Name a RUN twice for two rounds. Models are made in MODELS when they are not there, with random
weights. Every measurement has processes of its own, shows its lines as they come, and is ended
after its limit; whatever fails, the sections after it run, and what was found before is kept in
`OUT/results.json`. TP_DEVICE=cpu runs everything over gloo, to try this script itself (name RUNs
of MODEL tiny, with NUM_REQUESTS=2).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from child import Child, Row

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))

DEVICE = os.environ.get("TP_DEVICE", "cuda")
PARITY_MODEL = "parity" if DEVICE == "cuda" else "tiny"
SHORTEST_S = 40
"""With less time left nothing is begun."""

LIMITS_S = {"all_reduce": 90, "parity": 150, "control": 150, "kill": 150, "model": 300, "run": 400}
"""Longest time of one process of a section."""

NANO_VLLM_MEMORY = Path("/dev/shm/nanovllm")


class Bench:
    """Runs sections until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
        self.out.mkdir(parents=True, exist_ok=True)
        self.models = Path(os.environ.get("MODELS") or tempfile.mkdtemp())
        self.results: dict[str, Row] = {}
        self._memory_at_first = _memory_used()
        self._num_children = 0

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def run(self, section: str) -> None:
        """Run it and keep what it found, whatever happens."""
        begin = time.monotonic()
        key, round_number = section, 1
        while key in self.results:
            round_number += 1
            key = f"{section} #{round_number}"
        measure = getattr(self, f"section_{section}", None)
        found: Row = {}
        try:
            if measure is None:
                self.engine(section, found)
            else:
                measure(found)
        except Exception as error:
            traceback.print_exc()
            found["failed"] = f"{type(error).__name__}: {error}"
        self.results[key] = found
        print(f"[{time.monotonic() - begin:.0f} s] {key}", flush=True)
        print(json.dumps({k: v for k, v in found.items() if k != "log"}, indent=1), flush=True)
        path = self.out / "results.json"
        path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def model(self, name: str) -> str:
        """Its folder; made, in a process that then gives the device back, if it is not there."""
        folder = self.models / name
        if not (folder / "model.safetensors.index.json").is_file():
            made = self.result_of("model", self.child("model", str(self.models), name))
            if "failed" in made:
                raise RuntimeError(f"model {name} was not made: {made['failed']}")
        return str(folder)

    def child(self, name: str, *arguments: str) -> Child:
        command = [sys.executable, "-u", str(HERE / "measured.py"), name, *arguments]
        return self.start(name, command)

    def start(self, name: str, command: list[str], **environment: str) -> Child:
        self._num_children += 1
        log = self.out / f"{self._num_children:02d}_{name.replace(':', '_')}.log"
        return Child(name, command, log, **environment)

    def result_of(self, kind: str, child: Child) -> Row:
        """What it found; the devices are free again, unless something hangs."""
        found = child.result(min(LIMITS_S[kind], self.left_s))
        if "failed" in found:
            self._wait_for_memory()
        return found

    def section_all_reduce(self, found: Row) -> None:
        with tempfile.TemporaryDirectory() as folder:
            children = [
                self.child("all_reduce", str(rank), "2", f"{folder}/store") for rank in (0, 1)
            ]
            found.update(children[0].result(min(LIMITS_S["all_reduce"], self.left_s)))
            other = children[1].result(10)
        if "failed" in other:
            found["failed of rank 1"] = other["failed"]
            found.setdefault("failed", "rank 1 failed")
            self._wait_for_memory()

    def section_parity(self, found: Row) -> None:
        folder = self.model(PARITY_MODEL)
        runs: dict[str, Row] = {}
        for dtype in ("float32", "bfloat16"):
            for ranks in (1, 2):
                name = f"{dtype} {ranks}"
                run = self.result_of("parity", self.child("parity", folder, dtype, str(ranks)))
                if "failed" in run:
                    found[name] = {"failed": run["failed"], "log": run["log"]}
                    found["failed"] = name
                    continue
                runs[name] = run
                found.setdefault("graph_steps", {})[name] = run["graph_steps"]
                (self.out / "parity.json").write_text(json.dumps(runs), encoding="utf-8")
        _compare(runs, found)

    def section_control(self, found: Row) -> None:
        child = self.child("control", self.model(PARITY_MODEL), "2")
        found.update(self.result_of("control", child))

    def section_kill(self, found: Row) -> None:
        folder = self.model(PARITY_MODEL)
        found["MiB in use before"] = _memory_used()
        found.update(self.result_of("kill", self.child("kill", folder, "2")))
        self._wait_for_memory()
        found["MiB in use after"] = _memory_used()

    def engine(self, spec: str, found: Row) -> None:
        """A run of `engine_run.py`."""
        name, model, ranks, *rest = spec.split(":")
        folder = self.model(model)
        if self.left_s < SHORTEST_S:
            found["failed"] = "no time left"
            return
        ours: Row = {"tensor_parallel_size": int(ranks), "device": DEVICE}
        if rest:
            ours["executor"] = {"name": "torch", "all_reduce": rest[0]}
        if model == "32b":
            ours["max_num_batched_tokens"] = 8192
        if DEVICE == "cpu":
            ours["kv_allocator"] = {"name": "paged_prefix", "num_blocks": 4096}
        script = str(HERE.parent / "gpu" / "engine_run.py")
        child = self.start(
            spec,
            [sys.executable, "-u", script, name, folder, "1"],
            NANOFW_OPTIONS=json.dumps(ours),
            NANO_VLLM_OPTIONS=json.dumps({"tensor_parallel_size": int(ranks)}),
        )
        found.update(self.result_of("run", child))
        if name == "nano_vllm":  # its ranks' buffer has a fixed name, and a killed run leaves it
            with contextlib.suppress(OSError):
                NANO_VLLM_MEMORY.unlink()

    def _wait_for_memory(self, seconds: float = 15) -> None:
        """Processes that were killed give their memory back a little later."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            more = [
                now - first
                for now, first in zip(_memory_used(), self._memory_at_first, strict=False)
            ]
            if max(more, default=0) <= 300:
                return
            time.sleep(0.5)


def _compare(runs: dict[str, Row], found: Row) -> None:
    """What can be said from the runs that there are."""
    exact = runs.get("float32 1")
    if exact is None:
        return
    if "float32 2" in runs:
        found.update(_divergences(exact, runs["float32 2"]))
    for name, run in runs.items():
        if run is not exact:
            found[f"error of {name}"] = _error(exact, run)


def _divergences(one: Row, two: Row) -> Row:
    """Requests whose tokens differ, and the gap of the best two where they first do."""
    row: Row = {"requests": len(one["tokens"]), "that differ": 0, "gaps where they do": []}
    for name, tokens in one["tokens"].items():
        others = two["tokens"][name]
        place = next((i for i, (a, b) in enumerate(zip(tokens, others, strict=True)) if a != b), -1)
        if place >= 0:
            row["that differ"] += 1
            gap = one["gaps"][name][place] if name in one["gaps"] else None
            row["gaps where they do"].append([name, place, gap])
    return row


def _error(exact: Row, run: Row) -> float:
    """Mean distance of the prompts' log probabilities."""
    distances = [
        abs(a - b)
        for name, numbers in exact["prompts"].items()
        for a, b in zip(numbers, run["prompts"][name], strict=True)
    ]
    return sum(distances) / len(distances)


def _memory_used() -> list[int]:
    """MiB in use on each GPU; empty where it cannot be read."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return [int(line) for line in subprocess.check_output(command, text=True).split()]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return []


def print_table(results: dict[str, Row]) -> None:
    """All figures once more, shortly."""
    from timing import table

    print("\n=== results ===")
    engines = []
    for name, result in results.items():
        if "construct_s" not in result:
            rest = {k: v for k, v in result.items() if k not in ("us", "log")}
            if rest:
                print(name, rest)
            continue
        steps = {f"B={b} ms": round(ms, 3) for b, ms in result.get("step_ms", {}).items()}
        rates = [round(rate) for rate in result.get("tokens_per_s", [])]
        row = {"run": name, "ready s": round(result["construct_s"], 1), "tok/s": rates, **steps}
        engines.append(row | ({"failed": result["failed"]} if "failed" in result else {}))
    for name, result in results.items():
        if "us" in result:
            rows = [
                {f"{name}, rows of 4096": b, **{way: round(us, 1) for way, us in row.items()}}
                for b, row in result["us"].items()
            ]
            print(table(rows))
    if engines:
        print(table(engines))


def main() -> None:
    arguments = sys.argv[1:]
    seconds = 530.0
    if arguments and arguments[0].replace(".", "").isdigit():
        seconds = float(arguments.pop(0))
    if not arguments:
        sys.exit(__doc__)
    bench = Bench(seconds)
    print(f"MiB in use on each GPU: {_memory_used()}; results in {bench.out}", flush=True)
    for number, section in enumerate(arguments):
        if bench.left_s < SHORTEST_S:
            print("no time left for", *arguments[number:])
            break
        bench.run(section)
    print_table(bench.results)


if __name__ == "__main__":
    main()
