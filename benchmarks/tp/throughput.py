"""Output tokens per second on the CPUs of this machine by number of ranks, over gloo.

    python benchmarks/tp/throughput.py [--ranks 1,2] [--executors torch,ray] [--threads N]
        [--requests 32] [--rounds 2] [--model FOLDER] [--json FILE]

The model is that of `benchmarks/offline_cpu` unless `--model` names one. Greedy, no end token,
prompts of 64 random tokens, 64 new tokens each. `--threads` are those of all ranks together (as
many as there are cores), which share them. Configurations run in turn, `--rounds` times over, each
run in a process of its own; the table has the best round, the JSON all. A step at one row shows
what talking to the ranks costs. On cores that are shared several ranks can win nothing but
memory bandwidth: the table shows the price, and GPUs are measured by `gpu.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from child import Child, Row

HERE = Path(__file__).resolve().parent
PROMPT_TOKENS = NEW_TOKENS = 64
VOCAB = 32000
LIMIT_S = 600.0


def measure(folder: str, executor: str, ranks: int, num_requests: int) -> Row:
    """In a process of its own."""
    import numpy as np

    from nanofw import LLM, SamplingParams

    rng = np.random.default_rng(0)

    def seconds(batch_size: int, num_tokens: int) -> float:
        prompts = rng.integers(0, VOCAB, (batch_size, PROMPT_TOKENS)).tolist()
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        begin = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - begin

    begin = time.perf_counter()
    llm = LLM(
        folder, device="cpu", tensor_parallel_size=ranks, max_model_len=256, max_num_seqs=64,
        executor=executor,
    )  # fmt: skip
    row: Row = {"ready s": time.perf_counter() - begin}
    with llm:
        seconds(4, 8)
        wall = seconds(num_requests, NEW_TOKENS)
        row["tokens/s"] = num_requests * NEW_TOKENS / wall
        print("PARTIAL", json.dumps(row), flush=True)
        for batch_size in (1, num_requests):
            wall = seconds(batch_size, NEW_TOKENS + 1) - seconds(batch_size, 1)
            row[f"step of {batch_size} ms"] = wall / NEW_TOKENS * 1e3
    return row


def run(name: str, arguments: list[str], threads: int, out: Path) -> Row:
    command = [sys.executable, "-u", str(HERE / "throughput.py"), "--child", *arguments]
    # A rank of executor `torch` takes its share of these, one of `ray` all that it is told.
    each = threads if arguments[1] == "torch" else max(1, threads // int(arguments[2]))
    child = Child(name, command, out / f"{name.replace(' ', '_')}.log", OMP_NUM_THREADS=str(each))
    return child.result(LIMIT_S)


def table(rows: list[Row]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "log"))
    lines = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def environment(threads: int) -> Row:
    import torch

    import nanofw

    return {
        "nanofw": nanofw.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": os.getloadavg()[0],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--executors", default="torch,ray")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [(e, int(r)) for e in options.executors.split(",") for r in options.ranks.split(",")]
    facts = environment(options.threads)
    best: dict[tuple[str, int], Row] = {}
    rounds: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or make_model(Path(folder) / "model")
        for number in range(options.rounds):
            for executor, ranks in cases:
                arguments = [str(model), executor, str(ranks), str(options.requests)]
                found = run(f"{executor} {ranks}", arguments, options.threads, Path(folder))
                row: Row = {"executor": executor, "ranks": ranks, "round": number + 1, **found}
                rounds.append(row)
                print(json.dumps({k: v for k, v in row.items() if k != "log"}), flush=True)
                known = best.get((executor, ranks))
                if known is None or row.get("tokens/s", 0) > known.get("tokens/s", 0):
                    best[executor, ranks] = row
                if options.json:
                    record: dict[str, Any] = {"environment": facts, "rounds": rounds}
                    options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(table(list(best.values())))


def make_model(folder: Path) -> Path:
    sys.path.insert(0, str(HERE.parent / "offline_cpu"))
    from bench import write_model

    return write_model(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        model, executor, ranks, requests = sys.argv[2:]
        print("RESULT", json.dumps(measure(model, executor, int(ranks), int(requests))), flush=True)
    else:
        main()
