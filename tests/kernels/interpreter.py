"""Running a test file in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_in_interpreter(path: Path) -> None:
    """Fail with the file's report when one of its tests fails, or when it has none."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,  # below the limit of a test in pyproject.toml
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def triton_tests(folder: Path) -> list[Path]:
    """The test files of a folder that need Triton."""
    return sorted(folder.glob("test_triton_*.py"))
