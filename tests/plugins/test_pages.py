"""The pages for authors: every kind has one, whole examples work, every method is told about."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from nanofw.cli.main import main
from nanofw.plugins import KINDS, Entry, PluginSettings, build_registry, load_plugin
from nanofw.plugins.capabilities import contract_of
from nanofw.plugins.lint import Subject, lint
from nanofw.testing.suites import SUITES
from tools.contract_pages import classes, own_methods

PAGES = Path(__file__).parents[2] / "docs" / "plugins"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.py)\n")


def page(kind: str) -> str:
    return (PAGES / f"{kind}.md").read_text(encoding="utf-8")


def examples() -> list[ParameterSet]:
    """Kind, name of the file and both texts of each example: Python with a name, then YAML."""
    found: list[ParameterSet] = []
    for kind in KINDS:
        file: tuple[str, str] | None = None
        for language, text in FENCE.findall(page(kind)):
            if language == "python" and (name := FILE_NAME.match(text)):
                file = name[1], text
            elif language == "yaml" and file is not None:
                found.append(pytest.param(kind, *file, text, id=file[0].removesuffix(".py")))
                file = None
    return found


EXAMPLES = pytest.mark.parametrize(("kind", "file", "source", "text"), examples())


@pytest.fixture
def entry(
    kind: str, file: str, source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Entry:
    """The example's plugin, in a folder with `run.yaml`, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(source, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    registry = build_registry(PluginSettings(load=(tmp_path / file,)), environ={})
    (entry,) = [entry for entry in registry.entries if entry.path is not None]
    assert entry.kind == kind
    return entry


def test_every_page_has_an_example() -> None:
    assert {item.values[0] for item in examples()} == set(KINDS)


@EXAMPLES
def test_the_example_of_a_page_is_checked_and_runs(
    kind: str, text: str, entry: Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(lint(Subject(entry=entry, siblings=frozenset({entry.id})))) == []
    assert main(["config", "validate", "run.yaml"]) == 0
    assert f"{kind} {entry.name} of {entry.path}" in capsys.readouterr().out
    prompts = [] if "input:" in text else ['input.prompts=["Once", "Why"]']
    assert main(["run", "run.yaml", "output.file=results.jsonl", *prompts]) == 0
    results = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert results
    assert all(json.loads(line)["finish_reason"] in ("length", "stop") for line in results)


@pytest.mark.slow
@EXAMPLES
def test_the_example_of_a_page_keeps_its_contract(
    kind: str, entry: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    if contract_of(kind, load_plugin(entry).capabilities) not in SUITES:
        pytest.skip("the kit has no checks for this contract")
    code = main(["plugins", "test", kind, entry.name, "run.yaml"])
    captured = capsys.readouterr()
    assert code == 0, captured.out + captured.err


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_in_the_table_of_its_page(kind: str) -> None:
    _, _, table = page(kind).partition("## When it is called")
    table, _, _ = table.partition("## Methods")
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    methods = {name for cls in classes(KINDS[kind]) for name in own_methods(cls)}
    assert told == methods


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_the_parts_that_come_from_the_contract(kind: str) -> None:
    text = page(kind)
    for part in ("methods", "types", "facts", "claims"):
        assert text.count(f"<!-- {part} of {kind} -->\n") == 1
        assert text.count(f"<!-- end of {part} of {kind} -->\n") == 1
