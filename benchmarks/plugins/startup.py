"""What 50 installed packages cost at the start of a run that selects one of them.

    python benchmarks/plugins/startup.py [--packages 50] [--pairs 20] [--json FILE]

Each pair starts a command twice in processes of their own, one after the other, in an order that
alternates: once with no further package on the path, once with many, of which the run selects
one. Shown are the CPU seconds of both, and the ratio with its 95% interval over the pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy import stats

from nanofw.assembly.provenance import commit, machine

POLICY = """
from nanofw.plugins import Policy

class Mine(Policy):
    def key(self, request, view):
        return request.arrival
"""
MANIFEST = """
from nanofw.plugins import Plugin, hookimpl

@hookimpl
def scheduler():
    return Plugin("{name}", "{name}.policy:Mine", api="scheduler/2")
"""
COMMANDS = {
    "config validate": ["config", "validate", "sim"],
    "run, simulated": ["run", "sim", 'input.prompts=["Once"]', "sampling.max_tokens=4"],
}


def install(folder: Path, count: int) -> None:
    """Put packages into a folder, as an installer leaves them."""
    for number in range(count):
        name = f"package_{number}"
        info = folder / f"{name}-1.0.dist-info"
        for made in (info, folder / name):
            made.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        points = f"[nanofw]\nscheduler.{name} = {name}.manifest\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(points, encoding="utf-8")
        (folder / name / "__init__.py").write_text("", encoding="utf-8")
        manifest = MANIFEST.format(name=name)
        (folder / name / "manifest.py").write_text(manifest, encoding="utf-8")
        (folder / name / "policy.py").write_text(POLICY, encoding="utf-8")


def cpu_seconds(words: list[str], path: Path) -> float:
    """CPU time of one process with a folder on its path."""
    variables = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "nanofw", *words]
    quiet = subprocess.DEVNULL
    subprocess.run(command, env=variables, check=True, stdout=quiet, stderr=quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(
    words: list[str], folders: tuple[Path, Path], name: str, pairs: int
) -> dict[str, object]:
    arms = [(words, folders[0]), ([*words, f"scheduler.name={name}"], folders[1])]
    for arm in arms:  # compiled modules are written
        cpu_seconds(*arm)
    found: list[list[float]] = []
    for number in range(pairs):
        order = (0, 1) if number % 2 else (1, 0)
        times = {which: cpu_seconds(*arms[which]) for which in order}
        found.append([times[0], times[1]])
    logs = [math.log(many / none) for none, many in found]
    half = stats.t.ppf(0.975, pairs - 1) * statistics.stdev(logs) / math.sqrt(pairs)
    mean = statistics.mean(logs)
    return {
        "seconds_without": round(statistics.median(none for none, _ in found), 4),
        "seconds_with": round(statistics.median(many for _, many in found), 4),
        "ratio": round(math.exp(mean), 4),
        "interval": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folders = Path(place, "none"), Path(place, "many")
        for folder, count in zip(folders, (0, options.packages), strict=True):
            folder.mkdir()
            install(folder, count)
        results = {
            name: measure(words, folders, f"package_{options.packages // 2}", options.pairs)
            for name, words in COMMANDS.items()
        }
    for name, line in results.items():
        print(f"{name}: {line}")
    if options.json:
        record = {
            "packages": options.packages, "pairs": options.pairs, "results": results,
            "commit": commit(), "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
