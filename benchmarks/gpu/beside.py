"""nanofw beside nano-vllm: engines in turn, each in its own process, one table at the end.

    NANO_VLLM=checkout MODELS=folder python benchmarks/gpu/beside.py [SECONDS] RUN...

A RUN is ENGINE:MODEL:PASSES[:PART...][:KEY=VALUE...], as `engine_run.py` takes them; MODEL is 0.6b
or 8b, made in MODELS when it is not there (`make_model.py`). Name runs A B A B to see the spread
between processes. Those for which SECONDS (default 560) leave no time are skipped, and said so.
`OUT=folder` keeps logs and results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from make_model import make
from timing import table

HERE = Path(__file__).parent
SHORTEST_RUN_S = 20


def run_one(spec: str, models: Path, log: Path, seconds: float) -> dict[str, Any] | None:
    """The result of one process, or what it had when its time was over; None: nothing, and the end
    of its log is on the screen."""
    engine, model, passes, *rest = spec.split(":")
    command = [sys.executable, "-u", str(HERE / "engine_run.py"), engine, str(models / model)]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*command, passes, *rest], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | str = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = "out of time"
    text = log.read_text(encoding="utf-8", errors="replace")
    if code:
        print(f"{spec}: exit {code}\n{text[-1500:]}", flush=True)
    for line in reversed(text.splitlines()):
        if line.startswith(("RESULT ", "PARTIAL ")):
            return json.loads(line.partition(" ")[2])
    return None


def run_all(specs: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Each RUN in turn, as far as the time goes; what is found is shown at once."""
    begin = time.monotonic()
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    models = Path(os.environ.get("MODELS") or out / "models")
    results: list[dict[str, Any]] = []
    for number, spec in enumerate(specs):
        make(models, spec.split(":")[1])
        left = seconds - (time.monotonic() - begin)
        if left < SHORTEST_RUN_S:
            print("no time left for", *specs[number:])
            break
        started = time.monotonic()
        log = out / f"{number:02d}_{spec.replace(':', '_')}.log"
        result = run_one(spec, models, log, left)
        print(f"[{time.monotonic() - started:.0f} s] {spec}", flush=True)
        if result is not None:
            results.append(result | {"run": spec})
            print(table([as_row(result)]), flush=True)
            if "profile" in result:
                print_profile(result["profile"])
            (out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def as_row(result: dict[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {"engine": result["engine"], "model": result["model"]}
    row["import s"] = round(result["import_s"], 1)
    row["build s"] = round(result["construct_s"], 1)
    for number, rate in enumerate(result.get("tokens_per_s", ()), start=1):
        row[f"pass {number}"] = round(rate)
    row |= {f"B={b} ms": round(median(ms), 3) for b, ms in result.get("step_ms", {}).items()}
    for key, value in result.items():
        if key.startswith(("first_", "long_")) and isinstance(value, list) and value:
            row[key] = round(median(value), 3)
        elif key.startswith("gaps") and isinstance(value, dict):
            row[f"{key} longest ms"] = round(max(value["longest_ms"]), 1)
            row[f"{key} first ms"] = round(median(value["first_token_ms"]), 1)
    return row


def print_profile(profile: dict[str, Any]) -> None:
    """Everything that the device does in a step, most of the time first."""
    for what, found in profile.items():
        facts = {key: value for key, value in found.items() if not isinstance(value, list)}
        print(what, {key: round(value, 4) for key, value in facts.items()})
        for group in ("of_layers", "once", "copies"):
            rows = [{group: name, "number": number, "ms": ms} for ms, number, name in found[group]]
            if rows:
                print(table(rows), flush=True)


def main() -> None:
    arguments = sys.argv[1:]
    seconds = float(arguments.pop(0)) if arguments and ":" not in arguments[0] else 560.0
    if not arguments:
        sys.exit(__doc__)
    results = run_all(arguments, seconds)
    print()
    print(table([as_row(result) for result in results]))


if __name__ == "__main__":
    main()
