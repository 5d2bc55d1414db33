"""An experiment that was ended goes on; tables of requests; the Python interface."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanofw.cli.main import main
from nanofw.compare import analyse, load_experiment, run_experiment
from nanofw.errors import ConfigError, PluginLoadError

EXPERIMENT: dict[str, Any] = {
    "config": {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 2, "max_model_len": 1024},
        "executor": {"name": "sim", "cost_model": {"name": "roofline"}},
    },
    "arms": {"fcfs": {}, "sjf": {"scheduler": {"name": "shortest_job_first", "by": "output"}}},
    "workload": {
        "name": "poisson", "num_requests": 30, "guess_noise": 0.0, "prompt": 64,
        "output": {"distribution": "lognormal", "mean": 8, "sigma": 1.2, "high": 40},
    },
    "loads": [0.9],
    "repeats": 3,
    "processes": 1,
    "aa": False,
}  # fmt: skip


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**EXPERIMENT, **changes}), encoding="utf-8")
    return path


def test_finished_runs_are_taken_over(tmp_path: Path) -> None:
    path = written(tmp_path, output=str(tmp_path / "result.json"))
    whole = run_experiment(load_experiment(path))
    kept = tmp_path / "result.json.runs"
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 2 + 6
    kept.write_text("".join(lines[:5]) + lines[5][:40], encoding="utf-8")  # killed in a write
    labels: list[str] = []
    resumed = run_experiment(
        load_experiment(path, ["resume=true"]), lambda done, total, what: labels.append(what)
    )
    assert sum("run" in label for label in labels) == 3, "three of six runs were kept"
    assert resumed.runs == whole.runs
    assert [row.verdict for row in analyse(resumed).rows] == [
        row.verdict for row in analyse(whole).rows
    ]
    with pytest.raises(ConfigError, match="holds runs of another experiment"):
        run_experiment(load_experiment(path, ["resume=true", "workload.prompt=65"]))
    with pytest.raises(ConfigError, match="needs output"):
        run_experiment(load_experiment(path, ["resume=true", "output=null"]))


POLICY = """
from nanofw.plugins import Plugin, Policy, hookimpl


class Mine(Policy):
    def key(self, request, view):
        return {sign}request.arrival


@hookimpl
def scheduler():
    return Plugin("mine", ":Mine", api="scheduler/2")
"""


def test_runs_of_another_policy_or_trace_are_not_taken_over(tmp_path: Path) -> None:
    policy, trace = tmp_path / "mine.py", tmp_path / "trace.jsonl"
    line = '{{"arrival": {}, "prompt_tokens": 9, "output_tokens": {}}}\n'
    policy.write_text(POLICY.format(sign=""), encoding="utf-8")
    trace.write_text("".join(line.format(i, 3) for i in range(5)), encoding="utf-8")
    config = {**EXPERIMENT["config"], "plugins": {"load": [str(policy)]}}
    path = written(
        tmp_path, output=str(tmp_path / "result.json"), config=config, repeats=1, loads=None,
        arms={"fcfs": {}, "mine": {"scheduler": {"name": "mine"}}},
        workload={"name": "replay", "file": str(trace)},
    )  # fmt: skip
    run_experiment(load_experiment(path))
    run_experiment(load_experiment(path, ["resume=true"]))
    changes = ((trace, "".join(line.format(i, 4) for i in range(5))),
               (policy, POLICY.format(sign="-")))  # fmt: skip
    for file, text in changes:
        before = file.read_text(encoding="utf-8")
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="holds runs of another experiment"):
            run_experiment(load_experiment(path, ["resume=true"]))
        file.write_text(before, encoding="utf-8")


def test_the_command_leaves_nothing_to_resume(tmp_path: Path) -> None:
    path = written(tmp_path, output=str(tmp_path / "result.json"), decisions=str(tmp_path / "logs"))
    assert main(["compare", str(path)]) == 0
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["complete"]
    assert not (tmp_path / "result.json.runs").exists()
    assert len(list((tmp_path / "logs").glob("*.jsonl"))) == 6
    assert main(["replay", str(tmp_path / "logs" / "sjf_0.9_2.jsonl")]) == 0


def test_tables_of_requests_agree_with_the_metrics(tmp_path: Path) -> None:
    path = written(tmp_path, records=str(tmp_path / "records"), metrics=["ttft.mean", "e2e.p99"])
    results = run_experiment(load_experiment(path, ["warm_up=0", "drain=0"]))
    for (point, arm), runs in results.runs.items():
        for number, run in enumerate(runs, 1):
            name = tmp_path / "records" / f"{arm}_{point:g}_{number}.csv"
            with name.open(encoding="utf-8", newline="") as file:
                lines = list(csv.DictReader(file))
            assert len(lines) == run.num_requests == 30
            assert {(line["arm"], line["load"], line["run"]) for line in lines} == {
                (arm, str(point), str(number))
            }
            ttfts = [float(line["first_token"]) - float(line["arrival"]) for line in lines]
            assert sum(ttfts) / len(ttfts) == pytest.approx(run.values["ttft.mean"])
            assert sum(int(line["num_output_tokens"]) for line in lines) == run.num_output_tokens


def test_tables_in_parquet(tmp_path: Path) -> None:
    path = written(tmp_path, records=str(tmp_path / "records"), records_format="parquet")
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(PluginLoadError, match=r"pip install 'nanofw\[parquet\]'"):
            run_experiment(load_experiment(path))
        return
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    run_experiment(load_experiment(path, ["repeats=1"]))
    table = parquet.read_table(tmp_path / "records")
    assert table.num_rows == 2 * 30
    assert set(table["arm"].to_pylist()) == {"fcfs", "sjf"}
