"""lm-eval through the server: what it makes of `transformers` on the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients.programs import needs, run_module
from tests.server.running import Running

TASKS = Path(__file__).parent / "tasks"
NAMES = ("nanofw_choices", "nanofw_continuations")
pytestmark = [pytest.mark.clients, needs("lm_eval")]


def evaluated(folder: Path, model: str, arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scores of the tasks, and what the model answered to each of their requests."""
    run_module(
        "lm_eval", "run", "--model", model, "--model_args", arguments,
        "--tasks", ",".join(NAMES), "--include_path", str(folder / "tasks"), "--batch_size", "3",
        "--output_path", str(folder / model), "--log_samples", "--seed", "0",
        cwd=folder / "tasks",
    )  # fmt: skip
    (found,) = (folder / model).rglob("results_*.json")
    samples: dict[str, Any] = {}
    for name in NAMES:
        (path,) = (folder / model).rglob(f"samples_{name}_*.jsonl")
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        samples[name] = [line["resps"] for line in sorted(lines, key=lambda line: line["doc_id"])]
    return json.loads(found.read_text(encoding="utf-8"))["results"], samples


def test_scores_are_those_of_transformers(server: Running, model: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for path in TASKS.iterdir():
        (tmp_path / "tasks" / path.name).write_bytes(path.read_bytes())
    reference, expected = evaluated(
        tmp_path, "hf", f"pretrained={model},dtype=float32,max_length=2048"
    )
    scores, found = evaluated(
        tmp_path,
        "local-completions",
        f"model=demo,base_url={server.url}/v1/completions,tokenizer={model},num_concurrent=4",
    )
    assert scores == reference
    assert 0.5 < scores["nanofw_choices"]["acc,none"] <= 1
    assert 0 < scores["nanofw_continuations"]["exact_match,none"] < 1
    assert found["nanofw_continuations"] == expected["nanofw_continuations"]
    for ours, theirs in zip(found["nanofw_choices"], expected["nanofw_choices"], strict=True):
        for (mine,), (other,) in zip(ours, theirs, strict=True):
            assert float(mine[0]) == pytest.approx(float(other[0]), abs=1e-3)
            assert mine[1] == other[1]
