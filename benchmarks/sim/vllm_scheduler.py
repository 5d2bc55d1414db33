"""vLLM's scheduler and nanofw's over the same random workloads, step by step.

    python -m benchmarks.sim.vllm_scheduler PYTHON_WITH_VLLM [--workloads 50] [--json FILE]
        [--fixture FILE --seeds 18,20,...]

Each runs in a process of its own, its model mocked: first come first served, chunked prefill,
prefix cache, no step in flight. Compared are, for every step, the requests in it and their tokens,
the cached tokens of those that were admitted, and those that gave way. vLLM runs as it is, and with
each of three choices made as nanofw makes them (see `vllm_side`): what makes a workload agree
explains where it differed. `--fixture` writes what vLLM did, with all three, for a test without
vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sim.nanofw_side import run
from benchmarks.sim.vllm_workloads import make
from nanofw.assembly.provenance import commit

CHOICES = {
    "a": "blocks can be shared after the step that computes them, not in it",
    "w": "a request gets the blocks of its whole prompt on admission, not chunk by chunk",
    "o": "of idle blocks with equal content one stays cached, not each of them",
}
SETS = ["".join(letters) for n in range(4) for letters in itertools.combinations(CHOICES, n)]


def plain(trace: list[Any]) -> list[Any]:
    """As both write it: JSON has lists and text keys."""
    return json.loads(json.dumps(trace))


def vllm_traces(python: str, workloads: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """By the choices that are made as in nanofw."""
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "workloads.json"), Path(name, "traces.json")
        source.write_text(json.dumps(workloads), encoding="utf-8")
        side = Path(__file__).with_name("vllm_side.py")
        subprocess.run([python, str(side), str(source), str(target)], check=True)
        traces = json.loads(target.read_text(encoding="utf-8"))
    return {"" if mode == "plain" else mode: found for mode, found in traces.items()}


def first_difference(theirs: list[Any], ours: list[Any]) -> dict[str, Any] | None:
    for number, (one, other) in enumerate(itertools.zip_longest(theirs, ours)):
        if one != other:
            return {"number": number, "vllm": one, "nanofw": other, "kind": _kind(one, other)}
    return None


def _kind(one: list[Any] | None, other: list[Any] | None) -> str:
    """What differs first within the step."""
    if one is None or other is None:
        return "one ends earlier"
    if one[3] != other[3]:
        return "who gives way"
    if set(one[1]) != set(other[1]):
        return "who is in the step"
    return "cached tokens" if one[2] != other[2] else "tokens of a request"


def line(seed: int, traces: dict[str, list[Any]], ours: list[Any]) -> dict[str, Any]:
    agree = [letters for letters in SETS if traces[letters] == ours]
    return {
        "seed": seed, "steps": len(ours), "preemptions": sum(len(step[3]) for step in ours),
        "cached_tokens": sum(sum(step[2].values()) for step in ours),
        "agrees_with": agree,
        "difference": first_difference(traces[""], ours),
        "left": first_difference(traces["awo"], ours),
    }  # fmt: skip


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [line["difference"]["kind"] for line in lines if line["difference"]]
    needs = [line["agrees_with"][0] if line["agrees_with"] else "?" for line in lines]
    return {
        "workloads": len(lines),
        "steps": sum(line["steps"] for line in lines),
        "preemptions": sum(line["preemptions"] for line in lines),
        "cached_tokens": sum(line["cached_tokens"] for line in lines),
        "agree": {s: sum(s in line["agrees_with"] for line in lines) for s in SETS},
        "needs": {s: needs.count(s) for s in sorted(set(needs))},
        "first_differences": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "choices": CHOICES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="interpreter with vllm")
    parser.add_argument("--workloads", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixture", type=Path)
    parser.add_argument("--seeds", default="")
    options = parser.parse_args()
    workloads = [make(seed) for seed in range(options.workloads)]
    traces = vllm_traces(options.python, workloads)
    lines = [
        line(i, {mode: found[i] for mode, found in traces.items()}, plain(run(workload)))
        for i, workload in enumerate(workloads)
    ]
    told = summary(lines)
    print(json.dumps(told, indent=1))
    if options.json:
        version = subprocess.check_output(
            [options.python, "-c", "from importlib.metadata import distributions as d;"
             "print([x.name + ' ' + x.version for x in d() if x.name.startswith('vllm')][0])"],
            text=True,
        ).strip()  # fmt: skip
        record = {"benchmark": "sim/vllm_scheduler", "commit": commit(), "vllm": version, **told,
                  "lines": lines}  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.fixture:
        kept = {seed: traces["awo"][int(seed)] for seed in options.seeds.split(",")}
        options.fixture.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
