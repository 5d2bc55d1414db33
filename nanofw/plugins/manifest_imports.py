"""What the import of a manifest costs and prints, seen in a process of its own.

Run as a module it is that process: it imports what every manifest needs, and then each manifest in
a copy of itself, so that none profits from what another one has imported.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

HEAVY = frozenset(
    {
        "flash_attn", "flashinfer", "jax", "matplotlib", "pandas", "ray", "scipy", "sglang",
        "sklearn", "tensorflow", "torch", "torchaudio", "torchvision", "transformers", "triton",
        "vllm", "xformers",
    }
)  # fmt: skip
"""Packages that are told however long their import took: the files may have been in memory."""
SLOW_MS = 100.0
_LINE = re.compile(r"import time: +\d+ \| +(?P<us>\d+) \|(?P<indent> +)(?P<name>\S+)")
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestImports:
    """What one manifest module did while it was imported.

    Attributes:
        heavy: package -> milliseconds, of those that a manifest should not import.
        printed: what went to standard output and standard error.
    """

    heavy: Mapping[str, float]
    printed: str


def seen_imports(modules: Sequence[str]) -> dict[str, ManifestImports]:
    """By manifest module; nothing where a process cannot copy itself, or where it died."""
    if not modules or not hasattr(os, "fork"):
        return {}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", __name__],
        input=json.dumps({"path": sys.path, "modules": list(modules)}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {}
    texts: Mapping[str, str] = json.loads(done.stdout.splitlines()[-1])  # others may print, too
    return {module: _read(module, text) for module, text in texts.items()}


def _read(module: str, text: str) -> ManifestImports:
    lines = text.splitlines()
    printed = "\n".join(line for line in lines if not line.startswith("import time:")).strip()
    own = module.partition(".")[0]
    found: dict[str, float] = {}
    for package, milliseconds in _foreign(reversed(lines), {own, "nanofw"}):
        found[package] = found.get(package, 0.0) + milliseconds
    heavy = {
        package: milliseconds
        for package, milliseconds in found.items()
        if package in HEAVY or milliseconds >= SLOW_MS
    }
    return ManifestImports(heavy=heavy, printed=printed[:_SHOWN_CHARACTERS])


def _foreign(lines: Iterable[str], transparent: set[str]) -> Iterator[tuple[str, float]]:
    """The outermost imports of other packages, with their milliseconds.

    Args:
        lines: of Python's report, the last one first: a module stands before what it imported.
        transparent: packages that are looked into.
    """
    inside: int | None = None
    for line in lines:
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        depth, package = len(match["indent"]), match["name"].partition(".")[0]
        if inside is not None and depth > inside:
            continue
        inside = None
        if package not in transparent:
            inside = depth
            yield package, int(match["us"]) / 1000


def main() -> None:
    """Answer on standard output: module -> everything that its import wrote."""
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    importlib.import_module("nanofw.plugins")
    answer = json.dumps({module: _imported(module) for module in asked["modules"]})
    sys.stdout.write(f"\n{answer}\n")


def _imported(module: str) -> str:
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                importlib.import_module(module)
            finally:  # an error is told by the check that imports it
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(process, 0)
        output.seek(0)
        return output.read().decode(errors="replace")


if __name__ == "__main__":
    main()
