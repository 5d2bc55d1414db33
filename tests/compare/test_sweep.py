"""Sweeps over keys, their Pareto front, and the largest rate of real arms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanofw.cli.main import main
from nanofw.compare import find_capacities, load_experiment
from nanofw.errors import ConfigError

SWEEP: dict[str, Any] = {
    "config": {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_model_len": 1024},
        "executor": {"name": "sim", "cost_model": {"name": "roofline"}},
    },
    "workload": {"name": "poisson", "num_requests": 40, "prompt": 200, "output": 8},
    "sweep": {
        "engine.max_num_seqs": [1, 4],
        "scheduler.name": ["fcfs", "random"],
    },
    "pareto": ["e2e.mean", "ttft.mean"],
    "rates": [250],
    "repeats": 3,
    "processes": 1,
    "aa": False,
}  # fmt: skip


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, **changes}, sort_keys=False), encoding="utf-8")
    return path


def test_a_sweep_has_an_arm_for_each_combination_and_a_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    assert main(["compare", str(written(tmp_path, output=str(output)))]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    arms = ["1, fcfs", "1, random", "4, fcfs", "4, random"]
    assert list(result["provenance"]["arms"]) == arms
    lines = {line["arm"]: line for line in result["pareto"]}
    assert set(lines) == set(arms)
    assert lines["1, fcfs"]["beaten_by"] in ("4, fcfs", "4, random")
    assert lines["1, fcfs"]["is_sure"]
    best = min(arms, key=lambda arm: lines[arm]["means"]["e2e.mean"])
    assert lines[best]["beaten_by"] is None
    assert "Pareto front of e2e.mean, ttft.mean" in capsys.readouterr().out


def test_a_sweep_changes_the_arms_of_the_file_and_says_what_is_wrong(tmp_path: Path) -> None:
    arms = {"fcfs": {}, "sjf": {"scheduler": {"name": "shortest_job_first", "by": "output"}}}
    sweep = {"scheduler.watermark": [0.0, 0.1]}
    path = written(tmp_path, arms={"fcfs": arms["fcfs"]}, sweep=sweep)
    experiment = load_experiment(path)
    assert experiment.arms == ("fcfs, 0.0", "fcfs, 0.1")
    assert experiment.load("fcfs, 0.1").config.scheduler.options == {"watermark": 0.1}
    for sweep, message in (
        ({"engine.max_num_seqs": 4}, r"sweep\.yaml:\d+.*needs a list of values"),
        ({"engine.max_num_seqs": [4, 4]}, "names the arm '4' twice"),
        ({"engine.seed": list(range(40)), "engine.max_num_seqs": list(range(1, 40))}, "1,560 arms"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_experiment(written(tmp_path, sweep=sweep))


@pytest.mark.parametrize(
    ("num_requests", "max_repeats", "accuracy"),
    [(100, 3, 0.3), pytest.param(3000, 60, 0.02, marks=pytest.mark.slow)],
)
def test_the_largest_rate_of_one_server_is_that_of_the_formula(
    num_requests: int,
    max_repeats: int,
    accuracy: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """M/D/1 of 0.1 s by the engine: one row, one step of 100 prompt tokens each."""
    output = tmp_path / "capacity.json"
    path = written(
        tmp_path,
        config={
            "model": {"path": "shape:qwen3-0.6b"},
            "engine": {"max_model_len": 512, "max_num_seqs": 1, "overlap": False},
            "executor": {"name": "sim", "cost_model": {
                "name": "constant", "seconds_per_step": 0, "seconds_per_token": 0.001}},
        },
        workload={"name": "poisson", "num_requests": num_requests, "prompt": 100, "output": 1},
        arms={"server": {}}, sweep=None, pareto=[], rates=None, output=str(output),
        objectives=[{"metric": "queue.mean", "max": 0.1}],
        tolerance=0.01, max_repeats=max_repeats, curve=[0.5, 1.25],
    )  # fmt: skip
    assert main(["capacity", str(path)]) == 0
    found = json.loads(output.read_text(encoding="utf-8"))["arms"][0]
    expected = 0.1 / (0.005 + 0.01)  # mean wait 0.1 s at a load of 2/3
    assert found["sustained"]["rate"] == pytest.approx(expected, rel=accuracy)
    assert found["served"]["rate"] == pytest.approx(10, rel=0.02)
    waits = [point["values"]["queue.mean"] for point in found["points"]]
    assert waits == sorted(waits)
    assert "queue.mean at most 0.1 breaks first" in capsys.readouterr().out


def test_without_objectives_there_is_nothing_to_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing says what a rate must keep"):
        find_capacities(load_experiment(written(tmp_path)))
