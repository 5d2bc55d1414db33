"""The notebook of the examples: well formed, and its cells run from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "compare" / "analyse.ipynb"


def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_it_is_kept_without_results() -> None:
    """Results in the file would be those of another version."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_its_cells_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert set(names["decided"].arm) == {"shortest", "A/A"}
    counts = names["requests"].groupby(["load", "arm", "run"]).size()
    assert set(counts) == {60}
    assert len(counts) == 2 * sum(len(runs) for (_, arm), runs in names["results"].runs.items()
                                  if arm == "shortest")  # fmt: skip
    assert names["by_length"].ratio.min() < 1
