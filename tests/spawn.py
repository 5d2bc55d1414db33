"""Python in a process of its own, for what a test must see from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_python(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> str:
    """Standard output of `python ARGUMENTS`, which must succeed.

    Args:
        cwd: the folder that it starts in; None: this one.
        environment: variables beside those of the tests.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-6000:]
    return done.stdout
