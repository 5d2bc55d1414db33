"""The pages for authors: every kind has one, whole examples work, every method is told about."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nanofw.cli.main import main
from nanofw.plugins import KINDS, PluginSettings, build_registry
from nanofw.plugins.lint import Subject, lint
from nanofw.testing.suites import SUITES
from tools.contract_pages import classes, own_methods

PAGES = Path(__file__).parents[2] / "docs" / "plugins"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.py)\n")


def page(kind: str) -> str:
    return (PAGES / f"{kind}.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page's example."""
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(page(kind))
    for language, text in blocks:
        if language == "python" and (name := FILE_NAME.match(text)):
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif language == "yaml":
            (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_page_is_checked_and_runs(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = folder.glob("*.py")
    registry = build_registry(PluginSettings(load=(file,)), environ={})
    (entry,) = [entry for entry in registry.entries if entry.path is not None]
    assert entry.kind == kind
    assert list(lint(Subject(entry=entry, siblings=frozenset({entry.id})))) == []
    assert main(["config", "validate", "run.yaml"]) == 0
    validated = capsys.readouterr().out
    assert kind == "model" or f"{kind} {entry.name} of {file}" in validated  # reads no model
    prompts = [] if kind in ("workload", "logits_processor") else ['input.prompts=["Once", "Why"]']
    assert main(["run", "run.yaml", "output.file=results.jsonl", *prompts]) == 0
    results = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert results
    assert all(json.loads(line)["finish_reason"] in ("length", "stop") for line in results)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.base in SUITES])
def test_the_example_of_a_page_keeps_its_contract(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = folder.glob("*.py")
    registry = build_registry(PluginSettings(load=(file,)), environ={})
    (entry,) = [entry for entry in registry.entries if entry.path is not None]
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
