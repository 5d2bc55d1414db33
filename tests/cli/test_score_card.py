"""`nanofw plugins test`: the kit's checks of a plugin, and what was seen of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.cli.main import main

LOCAL = '''\
from nanofw.plugins import CostModelConfig, Options, Plugin, hookimpl
from nanofw.testing import CostModelChecks


class LinearOptions(Options):
    seconds: float = 0.01
    """Of each token."""


class Linear:
    def __init__(self, options, config: CostModelConfig):
        self.options = options

    def seconds(self, plan):
        return self.options.seconds * plan.total_tokens

    def kv_bytes(self):
        return None


class Forgetful(Linear):
    steps = 0

    def seconds(self, plan):
        Forgetful.steps += 1
        return 0.01 * Forgetful.steps


class Exits(Linear):
    def seconds(self, plan):
        raise SystemExit("no clock")


class OwnChecks(CostModelChecks):
    def test_a_check_of_its_own(self):
        """It has one."""
        assert self.make(CostModelConfig(
            spec=self.spec, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1
        )).options.seconds < 1


@hookimpl
def cost_model():
    return Plugin(
        "linear", ":Linear", api="cost_model/1", options=LinearOptions, checks=":OwnChecks"
    )
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a local plugin, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linear.py").write_text(LOCAL, encoding="utf-8")
    return tmp_path


def card(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = main(["plugins", "test", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def seen(found: dict) -> str:
    return " | ".join(check["seen"] for check in found["checks"] if check["outcome"] == "failed")


def test_a_built_in_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload", "fixed", "options.requests=[{prompt_tokens: 8, output_tokens: 4}]"]
    code, found = card(capsys, *words)
    assert (code, found["failed"], found["origin"][:7]) == (0, 0, "nanofw ")
    assert found["passed"] > 5
    assert main(["plugins", "test", *words]) == 0
    text = capsys.readouterr().out
    assert "requests can be served" in text
    assert f"{found['passed']} passed, 0 failed, 0 skipped" in text


def test_a_local_file_with_checks_of_its_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cost_model", "linear", "plugins.load=[linear.py]"]
    code, found = card(capsys, *words)
    assert (code, found["failed"]) == (0, 0)
    assert [check["outcome"] for check in found["checks"] if check["text"] == "It has one"] == [
        "passed"
    ]
    code, found = card(capsys, *words, "options.seconds=2")
    assert (code, found["failed"]) == (1, 1)
    assert "assert self.make(CostModelConfig(" in seen(found)


def test_another_class_in_its_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = card(capsys, "cost_model", "constant", "--target", "linear.py:Forgetful")
    assert (code, found["origin"]) == (1, "linear.py:Forgetful")
    assert "s the second time" in seen(found)
    code, found = card(capsys, "cost_model", "no_such", "--target", "linear.py:Exits")
    assert code == 1
    assert "no clock" in seen(found)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["cost_model", "constat"], 2, "did you mean 'constant'"),
        (["cost_models", "constant", "--target", "a:B"], 2, "no kind 'cost_models'"),
        (["cost_model", "constant", "options.second=1"], 2, "options.second"),
        (["cost_model", "constant", "checks.device=cpu"], 2, "CostModelChecks has no 'device'"),
        (["cost_model", "constant", "--target", "linear.py"], 2, "is not of the form MODULE:CLASS"),
        (["cost_model", "constant", "--target", "no_such.py:A"], 3, "does not exist"),
        (
            ["cost_model", "constant", "--target", "linear.py:LinearOptions"],
            3,
            "cannot be constructed",
        ),
        (["attention_backend", "triton", "checks.device=cpu"], 2, "attention_backend 'triton'"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    words: list[str], code: int, told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "test", *words]) == code
    assert told in capsys.readouterr().err
