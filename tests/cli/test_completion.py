"""Completion, by its words and in real shells."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanofw.cli.completion import SCRIPTS
from nanofw.cli.completion_words import SYNTAX, Syntax, candidates
from nanofw.cli.main import COMMANDS, main
from tests.plugins.packages import manifest
from tests.spawn import run_python

OPTION = re.compile(r"^  (?:-\w(?: \w+)?, )?(--[\w-]+)", re.MULTILINE)
SUBCOMMAND = re.compile(r"^    (\w+)(?:  |$)", re.MULTILINE)
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -D; "),
    "fish": (["fish", "--no-config", "-i"], ""),
}


def syntaxes() -> Iterator[tuple[list[str], Syntax]]:
    for name, syntax in SYNTAX.items():
        yield [name], syntax
        yield from (([name, below], inner) for below, inner in syntax.commands.items())


@pytest.mark.parametrize(
    ("words", "syntax"),
    [pytest.param(words, syntax, id="-".join(words)) for words, syntax in syntaxes()],
)
def test_the_table_says_what_the_help_says(
    words: list[str], syntax: Syntax, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert set(OPTION.findall(text)) - {"--help"} == set(syntax.options)
    if syntax.commands:
        assert SUBCOMMAND.findall(text) == list(syntax.commands)


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out.strip() == script.strip()


def test_the_table_has_every_command() -> None:
    assert set(SYNTAX) == set(COMMANDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration that loads a local policy, `mine`."""
    extra = "from nanofw.plugins import Options\nclass Mine(Options):\n    patience: int = 1\n"
    source = manifest("mine", extra=extra, options="Mine")
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    text = "base: sim\nplugins: {load: [mine.py]}\nscheduler: {name: mine}\n"
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("exp", ["explain"]),
        ("--debug exp", ["explain"]),
        ("plugins l", ["list"]),
        ("plugins list --c", ["--check"]),
        ("plugins show sch", ["scheduler"]),
        ("plugins show scheduler fair", ["fair_share"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("explain ru", ["run.yaml"]),
        ("explain --json qwen3-d", ["qwen3-demo"]),
        ("profile --trace m", ["mine.py", "model/"]),
        ("doctor mo", ["model/"]),
        ("explain run.yaml scheduler.", ["scheduler.name=", "scheduler.patience="]),
        ("explain run.yaml scheduler.name=mi", ["scheduler.name=mine"]),
        (
            "explain run.yaml scheduler.name=random scheduler.",
            ["scheduler.name=", "scheduler.seed="],
        ),
        ("explain scheduler.name=mi", []),
        ("run engine.batching=", ["engine.batching=mixed", "engine.batching=prefill_first"]),
        ("run output.file=ru", ["output.file=run.yaml"]),
        ("run model.path=m", ["model.path=model/"]),
        ("run model.path=e", ["model.path=embedded:demo"]),
        ("run sim executor.cost_model.name=con", ["executor.cost_model.name=constant"]),
        ("bench latency bench.rep", ["bench.repeats="]),
        ("compare compare.repe", ["compare.repeats="]),
        ("replay log.jsonl scheduler.na", ["scheduler.name="]),
        ("explain broken.yaml engine.max_num_s", ["engine.max_num_seqs="]),
        ("explain scheduler.name=nowhere engine.max_num_s", ["engine.max_num_seqs="]),
        ("no-such-command x", []),
        ("run engine.seed=", []),
        ("run no_such_section.x=", []),
    ],
)
def test_words_that_may_come_next(folder: Path, line: str, found: list[str]) -> None:
    assert candidates(line.split(" ")) == found


def test_completion_imports_no_torch(folder: Path) -> None:
    code = "import sys; from nanofw.cli.main import main; assert main(sys.argv[1:]) == 0; "
    code += "assert not {'torch', 'triton', 'transformers', 'scipy'} & set(sys.modules)"
    found = run_python("-c", code, "completion", "words", "--", "run", "run.yaml", "scheduler.p")
    assert found == "scheduler.patience=\n"


def screen(shell: str, typed: str, awaited: str, folder: Path) -> str:
    """What a shell shows of a line that was completed: the line is echoed, not run."""
    command, setup = STARTS[shell]
    variables = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "TERM": "dumb",
                 "HOME": str(folder), "PS1": "> ", "OMP_NUM_THREADS": "1"}  # fmt: skip
    process, ours = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, variables)
    seen = b""

    def until(text: str) -> None:
        nonlocal seen
        while text.encode() not in seen:
            assert select.select([ours], [], [], 60)[0], seen.decode(errors="replace")
            seen += os.read(ours, 4096)

    try:
        load = "source complete.fish" if shell == "fish" else f"{setup}source complete.{shell}"
        os.write(ours, f"{load}; echo rea''dy\n".encode())
        until("ready")
        seen = b""
        os.write(ours, f"{typed}\t".encode())
        until(awaited)
        seen = b""
        os.write(ours, b"\x01echo got:\n")
        until("got:nanofw")
        until("\n")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ours)
    return seen.decode(errors="replace")


@pytest.mark.parametrize(
    "shell",
    [
        "bash",
        pytest.param("zsh", marks=pytest.mark.slow),
        pytest.param("fish", marks=pytest.mark.slow),
    ],
)
def test_a_shell_completes(folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "bin").mkdir()
    program = folder / "bin" / "nanofw"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nanofw "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = SCRIPTS[shell]
    (folder / f"complete.{shell}").write_text(script, encoding="utf-8")
    seen = screen(shell, "nanofw explain run.yaml scheduler.name=fai", "r_share", folder)
    assert "got:nanofw explain run.yaml scheduler.name=fair_share" in seen
