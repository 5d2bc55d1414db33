from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from nanofw.cli import main as cli
from nanofw.errors import (
    CapabilityError,
    ConfigError,
    DuplicatePlugin,
    ExecutorError,
    ModelError,
    PluginLoadError,
    PolicyError,
    UnknownPlugin,
)

Install = Callable[[Callable[[list[str]], int]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a function the command `probe`."""

    def put(function: Callable[[list[str]], int]) -> None:
        module: Any = types.ModuleType("nanofw_test_command")
        module.main = function
        monkeypatch.setitem(sys.modules, "nanofw_test_command", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", ("nanofw_test_command", "a probe"))

    return put


@pytest.fixture
def failing(install: Install) -> Callable[[BaseException], int]:
    """Run a command that raises; returns the exit code."""

    def run(error: BaseException) -> int:
        def command(arguments: list[str]) -> int:
            raise error

        install(command)
        return cli.main(["probe"])

    return run


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, line) in cli.COMMANDS.items():
        assert name in text
        assert line in text


HELPS = [[command] for command in cli.COMMANDS] + [
    ["config", "show"], ["config", "validate"], ["plugins", "list"], ["plugins", "show"],
    ["bench", "latency"], ["bench", "throughput"], ["bench", "startup"], []
]  # fmt: skip


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_fits_a_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):  # argparse leaves by this door
        cli.main([*words, "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: nanofw")
    assert max(map(len, text.splitlines())) <= 80


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage" in capsys.readouterr().out
    assert cli.main(["plugin"]) == 2
    assert "did you mean 'plugins'" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from nanofw import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"nanofw {__version__}\n"


def test_arguments_and_exit_code_pass_through(install: Install) -> None:
    seen: list[list[str]] = []

    def command(arguments: list[str]) -> int:
        seen.append(arguments)
        return 1

    install(command)
    assert cli.main(["probe", "--x", "y=1"]) == 1
    assert seen == [["--x", "y=1"]]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong", key="a.b", source="run.yaml", line=3), 2),
        (CapabilityError("no"), 2),
        (UnknownPlugin("no"), 2),
        (DuplicatePlugin("two"), 2),
        (PluginLoadError("broken"), 3),
        (ModelError("missing"), 3),
        (PolicyError("nonsense"), 3),
        (ExecutorError("died"), 3),
        (RuntimeError("surprise"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_is_one_message_and_an_exit_code(
    failing: Callable[[BaseException], int],
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing(error) == code
    text = capsys.readouterr().err
    assert text.startswith("nanofw: ")
    assert str(error) in text
    assert "Traceback" not in text


def test_a_config_error_shows_its_place(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ConfigError("wrong", key="a.b", source="run.yaml", line=3))
    assert capsys.readouterr().err == "nanofw: run.yaml:3: a.b: wrong\n"


@pytest.mark.parametrize("by_variable", [True, False])
def test_debug_shows_the_traceback(
    install: Install,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by_variable: bool,
) -> None:
    def command(arguments: list[str]) -> int:
        raise RuntimeError("surprise")

    install(command)
    if by_variable:
        monkeypatch.setenv("NANOFW_DEBUG", "1")
        assert cli.main(["probe"]) == 3
    else:
        assert cli.main(["--debug", "probe"]) == 3
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "in command" in text


def test_warnings_of_ours_are_one_line(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    from nanofw.assembly import DowngradeWarning

    def command(arguments: list[str]) -> int:
        warnings.simplefilter("always")
        warnings.warn("overlap is off", DowngradeWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return 0

    install(command)
    assert cli.main(["probe"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "nanofw: warning: overlap is off"
    assert lines[1].startswith("nanofw: warning: old (")
