"""`nanofw plugins test`: the kit's checks of a plugin, and what was seen of each."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest

from nanofw.cli.main import main
from nanofw.testing.time_limit import TookTooLong, time_limit

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


class Endless(Linear):
    def seconds(self, plan):
        return self.sum_of_all_prices()

    def sum_of_all_prices(self):
        while True:
            try:
                sum(range(1000))
            except Exception:
                pass


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


def test_a_method_that_does_not_return_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cost_model", "constant", "--target", "linear.py:Endless", "--limit-s", "0.2"]
    code, found = card(capsys, *words)
    assert (code, found["passed"] < found["failed"]) == (1, True)
    named = "it did not end within 0.2 s: Endless.seconds() did not return (linear.py, line "
    assert any(check["seen"].startswith(named) for check in found["checks"])


def test_an_interrupt_that_is_caught_is_raised_at_the_end() -> None:
    def caught() -> None:
        with contextlib.suppress(BaseException):
            while True:
                pass

    with pytest.raises(TookTooLong, match=r"within 0.05 s"), time_limit(0.05):
        caught()


def test_a_plugin_whose_import_does_not_end_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text("def wait():\n    while True:\n        pass\n\nwait()\n")
    words = ["cost_model", "constant", "--target", f"{tmp_path}/slow.py:Slow", "--limit-s", "1"]
    assert main(["plugins", "test", *words]) == 3
    told = capsys.readouterr().err
    assert "cost_model 'constant' cannot be loaded: it did not end within 1 s: <module>()" in told
    assert "did not return (slow.py, line " in told


def test_an_alarm_of_others_goes_on_after_a_limit() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with time_limit(100):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
            "does not implement CostModel: it lacks kv_bytes, seconds",
        ),
        (["cost_model", "constant", "--limit-s", "0"], 2, "must be a number of seconds"),
        (["attention_backend", "triton", "checks.device=cpu"], 2, "attention_backend 'triton'"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    words: list[str], code: int, told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "test", *words]) == code
    assert told in capsys.readouterr().err
