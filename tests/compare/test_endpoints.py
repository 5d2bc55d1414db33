"""Arms that are endpoints: two servers in real time, one of which is slower."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanofw.assembly import Selection
from nanofw.cli.main import main
from nanofw.compare.analysis import analyse
from nanofw.compare.experiment import ExperimentOptions, load_experiment
from nanofw.compare.run import RunResult, run_once
from nanofw.compare.runner import run_experiment
from nanofw.compare.task import Task
from nanofw.errors import ConfigError
from tests.server.running import running

EXPERIMENT: dict[str, Any] = {
    "base": "sim",
    "workload": {
        "name": "poisson", "rate": 20, "num_requests": 40,
        "prompt": {"distribution": "uniform", "low": 8, "high": 12},
        "output": {"distribution": "uniform", "low": 6, "high": 8},
    },
    "rates": [40],
    "repeats": 4,
    "aa": False,
    "primary": "tpot.mean",
    "metrics": ["ttft.mean", "tpot.mean", "queue.mean", "preemptions", "throughput.tokens"],
}  # fmt: skip
FAST, SLOW = "executor.seconds_per_step=0.004", "executor.seconds_per_step=0.03"


def written(folder: Path, **more: Any) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**EXPERIMENT, **more}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_slower_endpoint_is_worse(tmp_path: Path) -> None:
    with running("sim", FAST) as fast, running("sim", SLOW) as slow:
        arms = {"fast": {"endpoint": fast.url}, "slow": {"endpoint": slow.url}}
        path = written(tmp_path, arms=arms, output=str(tmp_path / "found.json"))
        assert main(["compare", str(path)]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["provenance"]["virtual_time"] is False
    rows = {(row["arm"], row["metric"]): row for row in found["rows"]}
    assert rows["slow", "tpot.mean"]["verdict"] == "worse"
    assert rows["slow", "tpot.mean"]["mean"] == pytest.approx(0.03, rel=0.3)
    assert rows["fast", "throughput.tokens"]["mean"] > 0
    assert rows["fast", "queue.mean"]["mean"] is None
    assert rows["fast", "preemptions"]["mean"] is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"arms": {"a": {"endpoint": "here"}}}, "must be an address"),
        ({"arms": {"a": {"endpoint": "http://a"}, "b": {}}}, "compare like with like"),
        ({"arms": {"a": {"endpoint": "http://a"}}, "rates": None, "loads": [0.5]}, "capacity"),
        ({"arms": {"a": {"endpoint": "http://a"}}, "host_time": True}, "does not show it"),
        ({"arms": {"a": {"endpoint": "http://a"}}, "aa": True}, "set it to false"),
    ],
)
def test_what_endpoints_cannot_do_is_refused(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment(written(tmp_path, **more))


def answered(selection: Selection, options: ExperimentOptions, url: str, task: Task) -> RunResult:
    """What an endpoint would be measured at; `/short` ends each answer in the middle."""
    run = run_once(selection, options, seed=task.seed, time_scale=task.time_scale)
    if not url.endswith("/short"):
        return run
    values = {
        name: value / 2 if name != "throughput.tokens" else value / 3
        for name, value in run.values.items()
    }
    return replace(run, num_output_tokens=run.num_output_tokens // 2, values=values)


def test_an_endpoint_that_ends_its_answers_early_is_not_better(tmp_path: Path) -> None:
    urls = {"whole": "http://a", "short": "http://a/short", "same": "http://a/v1/"}
    path = written(
        tmp_path, arms={arm: {"endpoint": url} for arm, url in urls.items()}, primary=None,
        metrics=["tpot.mean", "throughput.tokens"],
    )  # fmt: skip
    made = replace(load_experiment(path), measure_endpoint=answered)
    analysis = analyse(run_experiment(made))
    found = {row.metric: row for row in analysis.rows if row.arm == "short"}
    assert found["tpot.mean"].verdict == "no evidence"
    assert "shorter or longer" in str(found["tpot.mean"].reason)
    assert found["throughput.tokens"].verdict == "worse"
    assert any("same and whole are the same" in text for text in analysis.warnings)
    assert any("short at 40: made another number" in text for text in analysis.warnings)
