"""Where a result comes from: what ran, in which versions, on what."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nanofw
from nanofw.assembly.selection import Selection
from nanofw.config.load import plain
from nanofw.machine import processor_name

PACKAGES = ("numpy", "torch", "triton", "tokenspeed-fa3", "flash-attn", "scipy", "statsmodels")


def origin(arguments: Sequence[str] = ()) -> dict[str, object]:
    """Date, versions, commit, machine; `arguments` are those of the command."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": list(arguments),
        "nanofw": nanofw.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "machine": machine(),
    }


def run_record(selection: Selection) -> dict[str, object]:
    """What a run was made of: its resolved configuration, components with origins, facts."""
    return {
        "config": plain(selection.loaded.config),
        "components": {
            f"{choice.kind}.{choice.name}": choice.origin
            for choice in selection.explanation.choices
        },
        "facts": dict(selection.explanation.facts),
        "dropped": [
            f"{'.'.join(map(str, item.path))}: {item.reason}" for item in selection.loaded.dropped
        ],
    }


def machine() -> dict[str, object]:
    """Processor, cores and load; the accelerator where torch sees one."""
    facts: dict[str, object] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    if hasattr(os, "getloadavg"):
        facts["load"] = round(os.getloadavg()[0], 2)
    return facts


def commit() -> str | None:
    """The commit of the checkout that nanofw runs from, `+` when files differ; else None."""
    folder = Path(nanofw.__file__).parent
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not found:
        return None
    return found + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
