"""Running a test file in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


# A GPU takes milliseconds for such a test; there, the mark repeats the limit that all tests have.
slow_in_interpreter = pytest.mark.timeout(900) if torch.cuda.is_available() else pytest.mark.slow


SLOW_FILES = ("test_triton_mixes", "test_triton_prefill_graphs")
"""Products of what other files try each for itself."""


def run_in_interpreter(paths: Sequence[Path], slow: bool) -> None:
    """Run the quick or the slow tests of files; fail with their report when one of them fails."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            "-m", "slow" if slow else "not slow", *map(str, paths),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,  # below the limit of a test in pyproject.toml
    )  # fmt: skip
    none_is_slow = slow and done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert done.returncode == 0 or none_is_slow, done.stdout[-6000:] + done.stderr[-2000:]


def triton_tests(folder: Path) -> list[Any]:
    """Parameters `paths` and `slow` for the test files of a folder that need Triton.

    The quick tests of several files run in one of two processes: a start takes seconds.
    """
    paths = sorted(folder.glob("test_triton_*.py"))
    quick = [path for path in paths if path.stem not in SLOW_FILES]
    return [
        *(_parameters(part, False) for part in (quick[::2], quick[1::2]) if part),
        *(_parameters([path], False) for path in paths if path not in quick),
        *(_parameters([path], True) for path in paths),
    ]


def _parameters(paths: list[Path], slow: bool) -> Any:
    names = ", ".join(path.stem for path in paths)
    is_slow = slow or any(path.stem in SLOW_FILES for path in paths)
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(paths, slow, id=f"{names}-slow" if slow else names, marks=marks)
