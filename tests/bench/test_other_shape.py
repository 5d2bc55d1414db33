"""A roofline fitted to steps of one shape, applied to another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sim.other_shape import compare, predicted
from nanofw.sim.shapes import shape
from nanofw.sim.work import StepWork

ONE, OTHER = "0.6b", "1.7b"
"""As many layers in both, so that the time of a step is the same."""


def steps(path: Path, name: str, numbers: tuple[float, ...]) -> Path:
    """What `fidelity --steps` writes of a machine that is such a roofline."""
    rng = np.random.default_rng(1)
    works: list[StepWork] = []
    for _ in range(120):
        rows, prompts = int(rng.integers(1, 17)), int(rng.choice([0, 0, 1, 4]))
        tokens = rows + prompts * int(rng.integers(1, 2000))
        keys = tokens + rows * int(rng.integers(1, 4000))
        works.append(StepWork(rows, prompts, tokens, rows, keys, keys + 500 * (tokens - rows)))
    seconds = predicted(shape(f"qwen3-{name}"), "h200", numbers, works)
    rows_of = [[*work, 1, took, None] for work, took in zip(works, seconds.tolist(), strict=True)]
    path.write_text(json.dumps(rows_of), encoding="utf-8")
    return path


def test_of_a_machine_that_is_a_roofline_the_other_shape_is_predicted(tmp_path: Path) -> None:
    numbers = (0.4, 0.7, 300.0, 5.0)
    files = steps(tmp_path / "one", ONE, numbers), steps(tmp_path / "other", OTHER, numbers)
    found = compare(*files, (ONE, OTHER), "h200")
    assert found["numbers"] == pytest.approx(numbers, rel=0.02)
    assert found["errors_on_other"]["p90"] < 0.01


def test_an_error_on_the_other_shape_is_told(tmp_path: Path) -> None:
    one = steps(tmp_path / "one", ONE, (0.4, 0.7, 300.0, 5.0))
    other = steps(tmp_path / "other", OTHER, (0.2, 0.35, 300.0, 5.0))
    found = compare(one, other, (ONE, OTHER), "h200")
    assert found["errors_on_one"]["median"] < 0.01
    assert found["errors_on_other"]["total"] < -0.3
    assert found["errors_of_own_fit"]["median"] < 0.01
