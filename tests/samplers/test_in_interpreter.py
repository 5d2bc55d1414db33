"""Every `test_triton_*.py` beside this file, on CPU in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.interpreter import run_in_interpreter, triton_tests


@pytest.mark.parametrize(("paths", "slow"), triton_tests(Path(__file__).parent))
def test_in_interpreter(paths: list[Path], slow: bool) -> None:
    run_in_interpreter(paths, slow)
