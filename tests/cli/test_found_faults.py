"""Faults that people found in the command line, by their ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.cli import ExitCode
from nanofw.cli.main import main
from tests.plugins.packages import write_dist_info
from tests.spawn import run_python

TALKATIVE = """
import os
from nanofw.plugins import Plugin, Policy, hookimpl

def talk():
    print("noise")
    os.write(1, b"more noise\\n")

talk()

class Talks(Policy):
    def __init__(self, options, config):
        talk()

    def key(self, request, view):
        talk()
        return request.arrival

def probe(device, options):
    talk()
    return {}

@hookimpl
def scheduler():
    talk()
    return Plugin("talks", ":Talks", api="scheduler/2", capabilities={"overlap": True})
"""
COMMAND = "import sys; from nanofw.cli.main import main; sys.exit(main())"
PROMPTS = "input.prompts=[{prompt_token_ids: [1, 2, 3]}]"


@pytest.mark.parametrize(
    "words",
    [
        ["config", "schema"],
        ["plugins", "list", "--check", "--json"],
        ["plugins", "show", "scheduler", "talks", "--json"],
        ["explain", "sim", "scheduler.name=talks", "--json"],
        ["run", "sim", "scheduler.name=talks", "output.file=-", PROMPTS],
    ],
    ids=lambda words: words[0],
)
def test_F022_standard_output_is_the_commands_alone(tmp_path: Path, words: list[str]) -> None:
    write_dist_info(tmp_path, "outside", "1.0", {"scheduler.talks": "talkative"})
    (tmp_path / "talkative.py").write_text(TALKATIVE, encoding="utf-8")
    text = run_python("-c", COMMAND, *words, environment={"PYTHONPATH": str(tmp_path)})
    assert json.loads(text)


def test_F022_what_a_plugin_prints_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--help"])  # before it claims standard output
    assert capsys.readouterr().out.startswith("usage")
    path = tmp_path / "talkative.py"
    changes = [f"plugins.load=[{path}]", "scheduler.name=talks"]
    source = TALKATIVE.replace('    os.write(1, b"more noise\\n")\n', "")
    path.write_text(source, encoding="utf-8")
    assert main(["explain", "sim", *changes, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["choices"]
    assert "noise" in captured.err


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["explain"],
        ["config", "show"],
        ["config", "validate"],
        ["plugins", "list"],
        ["compare"],
        ["bench", "latency"],
        ["profile"],
        ["verify"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("empty", ["", "  "])
def test_F055_an_empty_argument_is_an_error(
    command: list[str], empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*command, empty])
    assert code != ExitCode.OK
    captured = capsys.readouterr()
    assert "empty" in captured.err or "should name something" in captured.err
    assert not captured.out


@pytest.mark.parametrize("model", ["./nowhere", "model.path=./nowhere"])
def test_F059_verify_takes_the_model_in_either_spelling(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", model]) == ExitCode.FAILED
    error = capsys.readouterr().err
    assert "nowhere" in error
    assert "model.path=./nowhere" not in error
