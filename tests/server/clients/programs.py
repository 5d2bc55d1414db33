"""Programs that talk to a server: whether they are installed, and how they are run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TIMEOUT_S = 600
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OPENAI_API_KEY": "none",
}


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips tests where a package is not installed; `make clients` installs all."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def run_module(
    module: str, *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program to its end, without a network beyond this machine; what it printed.

    Args:
        environment: variables that it needs, in place of those of `OFFLINE`.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, **OFFLINE, "HF_HOME": str(cwd / "hf"), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr
