"""A log decided again: the same choices, and where another policy first chooses otherwise."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from nanofw.cli.main import main
from nanofw.decisions.log import read_log
from nanofw.decisions.records import StepRecord
from nanofw.decisions.replay import replay_log
from tests.decisions.runs import Mixed, chosen, recorded


@pytest.mark.parametrize(
    ("policy", "engine"),
    [
        ("fcfs", {"overlap": True}),
        ("earliest_deadline_first", {"overlap": False}),
        ("fair_share", {"overlap": True, "batching": "prefill_first"}),
        ("longest_prefix_match", {"overlap": True, "chunk_tokens": 32, "max_partial_prefills": 2}),
    ],
)
def test_a_log_replays_to_the_same_choices(
    policy: str, engine: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    recorded(chosen(policy, **engine), Mixed(50, seed=3), path)
    log = read_log(path)
    replayed = replay_log(log)
    assert replayed.difference is None
    assert replayed.num_calls == len(log.calls) > 100


@pytest.mark.slow
def test_ten_thousand_steps_replay(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    recorded(chosen("priority", overlap=True), Mixed(2500, seed=5), path)
    log = read_log(path)
    assert len(log.calls) > 10_000
    assert replay_log(log).difference is None


def test_the_first_difference_is_where_a_run_of_the_other_policy_differs(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("fcfs", "shortest_job_first")}
    for name, path in paths.items():
        recorded(chosen(name, num_blocks=200), Mixed(60, seed=4), path)
    logs = [[call.record.choice for call in read_log(path).calls] for path in paths.values()]
    expected = next(i for i, (a, b) in enumerate(zip(*logs, strict=False)) if a != b)
    log = read_log(paths["fcfs"])
    replayed = replay_log(log, ["scheduler.name=shortest_job_first"])
    assert replayed.difference is not None
    assert replayed.num_calls == replayed.difference.call == expected
    before, after = replayed.difference.before, replayed.difference.after
    assert isinstance(before, StepRecord)
    assert isinstance(after, StepRecord)
    assert (before.choice, after.choice) == (logs[0][expected], logs[1][expected])
    ranks = {item.id: item for item in replayed.difference.ranks}
    assert ranks[before.new[0].id].before == 1
    assert ranks[after.new[0].id].after == 1
    assert ranks[before.new[0].id].after != 1


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    recorded(chosen(), Mixed(30, seed=4), path)
    assert main(["why", str(path), "r7", "r8"]) == 0
    out = capsys.readouterr().out
    assert "request r7: " in out
    assert "got a row in step" in out
    trace = tmp_path / "trace.json"
    assert main(["why", str(path), "--timeline", str(trace)]) == 0
    assert_a_timeline(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
    assert "30 requests" in capsys.readouterr().out
    assert main(["replay", str(path)]) == 0
    assert "the same choices in all" in capsys.readouterr().out
    assert main(["replay", str(path), "scheduler.name=shortest_job_first"]) == 1
    out = capsys.readouterr().out
    assert "the first difference is in step" in out
    assert "ranks and keys" in out


def assert_a_timeline(events: list[dict[str, Any]]) -> None:
    """Every request runs, and what lies in one lane does not overlap."""
    spans = [event for event in events if event["ph"] == "X"]
    ran = {event["name"].split()[0] for event in spans if event["name"].endswith(" decode")}
    assert len(ran) >= 25
    last: dict[tuple[int, int], float] = {}
    requests = [event for event in spans if event["cat"] == "request"]
    for event in sorted(requests, key=lambda event: event["ts"]):
        lane = event["pid"], event["tid"]
        assert event["ts"] >= last.get(lane, 0.0) - 1e-3
        last[lane] = event["ts"] + event["dur"]
    most = max(event["args"]["running"] for event in events if event["name"] == "requests")
    assert most == 6


def test_a_real_run_and_its_stop_strings_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    prompts = ["Once upon a time", "The", "A very long way from here there was a"]
    words = [
        f"input.prompts={json.dumps(prompts)}", f"output.decisions={path}", "sampling.stop=[e]",
        "sampling.max_tokens=20", "sampling.n=2", "engine.max_num_seqs=2",
        f"output.file={tmp_path / 'results.jsonl'}",
    ]  # fmt: skip
    assert main(["run", "qwen3-demo", *words]) == 0
    log = read_log(path)
    reasons = {life.finished.reason for life in log.lives.values() if life.finished}
    assert "stop" in reasons
    assert len(log.lives) == 6
    assert main(["replay", str(path)]) == 0, capsys.readouterr().out


def test_the_example_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "compare" / "analyse.py"
    runpy.run_path(str(example))["main"](tmp_path)
    out = capsys.readouterr().out
    assert "shortest: mean E2E" in out
    assert "waited longest" in out
    assert "plans, then otherwise" in out
