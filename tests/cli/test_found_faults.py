"""Faults that people found in the command line, by their ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw import LLM
from nanofw.cli import ExitCode
from nanofw.cli.main import main
from nanofw.llm.opening import ShortPoolWarning
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


POOL = "kv_allocator={num_blocks: 3, block_size: 4}"


def test_F050_a_length_that_was_asked_for_and_does_not_fit_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "sim", POOL, "engine.max_model_len=256"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "engine.max_model_len: 256 tokens do not fit in the pool of 3 blocks of 4 tokens" in said
    assert "set it to 13 or less" in said


def test_F050_a_pool_that_the_executor_finds_too_small_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "class Small:\n"
        "    def __init__(self, *_): pass\n"
        "    def seconds(self, plan): return 0.01\n"
        "    def kv_bytes(self): return 50_000\n"
        "@hookimpl\n"
        "def cost_model():\n"
        "    return Plugin('small', ':Small', api='cost_model/1')\n",
        encoding="utf-8",
    )
    words = (f"plugins.load=[{tmp_path / 'small.py'}]", "executor.cost_model.name=small")
    assert main(["run", "sim", *words, "engine.max_model_len=1024"]) == ExitCode.USAGE
    with (
        pytest.warns(ShortPoolWarning, match="and not the model's"),
        LLM.from_config("sim", *words) as llm,
    ):
        assert llm.engine.max_model_len < 1024


@pytest.mark.filterwarnings("always")
def test_F050_a_length_that_the_pool_cuts_is_told_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "x.jsonl"
    words = ("sim", POOL, "sampling={max_tokens: 128, ignore_eos: true}")
    asked = """input.prompts=[{prompt_token_ids: [1, 2, 3, 4, 5]}, {prompt: x, max_tokens: 2}]"""
    assert main(["run", *words, asked, f"output.file={output}"]) == ExitCode.OK
    said = capsys.readouterr().err
    assert "warning: max_model_len is 13 and not the model's 2048" in said
    assert "2 length; 1 reached max_model_len" in said
    results = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(one["num_output_tokens"], one["limit"]) for one in results] == [
        (8, "max_model_len"), (2, "max_tokens"),
    ]  # fmt: skip
    assert main(["explain", *words]) == ExitCode.OK
    explained = " ".join(capsys.readouterr().out.split())
    assert "max_model_len 13" in explained
    assert "note: max_model_len is 13 and not the model's 2048" in explained


def test_F050_a_pool_of_the_model_s_length_is_not_mentioned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool = "kv_allocator={num_blocks: 512, block_size: 4}"
    assert main(["run", "sim", pool, "sampling.max_tokens=2"]) == ExitCode.OK
    assert "max_model_len" not in capsys.readouterr().err


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_F051_the_order_of_admission_is_in_the_outputs(tmp_path: Path, overlap: str) -> None:
    output, steps = tmp_path / "x.jsonl", tmp_path / "steps.jsonl"
    lengths = [9, 2, 14, 5]
    prompts = [{"prompt_token_ids": [3] * length, "id": f"r{length}"} for length in lengths]
    code = main([
        "run", "sim", f"input.prompts={json.dumps(prompts)}", "scheduler.name=shortest_job_first",
        "engine.max_num_seqs=1", f"engine.overlap={overlap}", "sampling.max_tokens=3",
        f"output={{file: {output}, steps: {steps}}}",
    ])  # fmt: skip
    assert code == ExitCode.OK
    results = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    reports = [json.loads(line) for line in steps.read_text(encoding="utf-8").splitlines()]
    by_start = sorted(results, key=lambda one: one["scheduled"])
    admitted = [(one, report) for report in reports for one in report["admitted"]]
    assert [one["id"] for one, _ in admitted] == [one["id"] for one in by_start]
    assert [one["id"] for one in by_start] == [f"r{length}" for length in sorted(lengths)]
    for result, (one, report) in zip(by_start, admitted, strict=True):
        assert result["arrival"] <= result["scheduled"] <= result["first_token"]
        assert result["first_token"] <= result["finished"]
        assert result["arrival"] == pytest.approx(one["arrival"], abs=1e-6)
        assert result["scheduled"] == pytest.approx(one["scheduled"], abs=1e-6)
        assert one["scheduled"] == report["planned"]
        assert result["queue_s"] == pytest.approx(result["scheduled"] - result["arrival"])
