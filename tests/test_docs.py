"""What README and docs show is true: YAML loads, commands and Python run, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanofw.assembly import assemble
from nanofw.cli.main import COMMANDS, main
from nanofw.compare.experiment import load_experiment
from nanofw.config.load import load_config
from tests.public import is_public
from tests.server.running import chat_model
from tests.spawn import run_python

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.(?:py|yaml))\n")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
NAME = re.compile(r"\bnanofw(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^\s*from (nanofw(?:\.\w+)*) import ", re.MULTILINE)
SPANS = {"nanofw.plan", "nanofw.submit.forward"}
"""Names in a trace, which are not modules."""
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
FIGURE = re.compile(r"\d[\d.,]* ?(?:%|ms\b|µs\b|s\b|times\b|bytes\b|MB\b)|tokens/s")
MEASURED = re.compile(r"\bH200\b|\bEPYC\b|\bXeon\b|processor (?:time|second)|CPU time")
EACH = """
import sys
for number, script in enumerate(sys.argv[1:]):
    print("\\nscript", number, flush=True)
    exec(compile(script, f"script {number}", "exec"), {"__name__": "__main__"})
"""
"""Runs scripts one after the other, each with names of its own."""
SCRIPTS = [README, DOCS / "python.md", DOCS / "structured-output.md"]
SMALL = {
    "input.workload.name=poisson": ["input.workload.num_requests=40", "compare.repeats=2"],
    "latency": ["bench.output_tokens=9", "bench.repeats=1"],
    "profile": ["profile.steps=2"],
}
"""Arguments that keep an example short here."""


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield text


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands() -> list[str]:
    texts = [text.replace("\\\n", " ") for text in blocks(README, "sh")]
    lines = [line for text in texts for line in text.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("nanofw ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the README shows."""
    for language in ("yaml", "python"):
        for text in blocks(README, language):
            if match := FILE_NAME.match(text):
                (tmp_path / match[1]).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_readme_work(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command)[1:]
    assert words[0] in COMMANDS
    for word, more in SMALL.items():
        words += more if word in words else []
    monkeypatch.chdir(folder)
    assert main(words) == 0
    if words[0] == "run":
        results = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(results) == 2


@pytest.mark.parametrize("page", SCRIPTS, ids=page_id)
def test_python_of_the_docs_works(tmp_path: Path, page: Path) -> None:
    scripts = [text for text in blocks(page, "python") if not FILE_NAME.match(text)]
    assert scripts
    said = run_python("-c", EACH, *scripts, cwd=tmp_path)
    parts = re.split(r"^script \d+\n", said, flags=re.MULTILINE)[1:]
    assert len(parts) == len(scripts)
    assert all(part.strip() for part in parts), said


def test_the_ten_programs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    chat_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    programs = list(blocks(DOCS / "programs.md", "python"))
    assert len(programs) == 10
    for program in programs:
        exec(compile(program, "programs.md", "exec"), {"__name__": "program"})
        assert capfd.readouterr().out.strip(), program


def test_make_targets_of_the_readme_exist() -> None:
    targets = {
        line.partition(":")[0] for line in (ROOT / "Makefile").read_text("utf-8").splitlines()
    }
    named = {
        line.split()[1]
        for text in blocks(README, "sh")
        for line in text.splitlines()
        if line.startswith("make ")
    }
    assert named == {"demo", "test"}
    assert named <= targets


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page_id(page)}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page, "yaml"))
    ],
)
def test_yaml_of_the_pages_loads(page: Path, block: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(block, encoding="utf-8")
    if page.name == "compare.md" or re.search(r"^arms:", block, re.MULTILINE):
        experiment = load_experiment(file)
        assert all(experiment.load(arm).config.model is not None for arm in experiment.arms)
    else:
        assert load_config(file).config.model is not None


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "ray").glob("*.yaml")), ids=page_id)
def test_yaml_of_the_examples_loads(file: Path) -> None:
    assert load_config(file).config.model is not None


def test_the_first_plugin_of_the_page_runs(tmp_path: Path) -> None:
    page = DOCS / "plugins" / "writing.md"
    (tmp_path / "my_policy.py").write_text(next(blocks(page, "python")), encoding="utf-8")
    (tmp_path / "run.yaml").write_text(next(blocks(page, "yaml")), encoding="utf-8")
    with assemble(load_config(tmp_path / "run.yaml")) as engine:
        policy = engine.scheduler.policy
    assert type(policy).__name__ == "FewestTokens"
    assert policy.options.weight == 2.0


def test_the_tutorial_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "tutorial.md"
    for block in [*blocks(page, "python"), *blocks(page, "yaml")]:
        (tmp_path / FILE_NAME.match(block)[1]).write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "run.yaml"]) == 0
    assert next(blocks(page, "text")) in capsys.readouterr().out
    assert main(["why", "run.log"]) == 0
    story = capsys.readouterr().out
    assert story.index("request-0") < story.index("request-1")
    experiment = load_experiment(Path("experiment.yaml"))
    delays = {arm: experiment.load(arm).config.scheduler.options for arm in experiment.arms}
    assert delays == {"fcfs": {}, "chats_first": {}, "two_seconds": {"batch_s": 2}}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "decisions"], ids=page_id
)
def test_measured_figures_have_a_source(page: Path) -> None:
    """A section with figures of a named machine, or of processor time, links the results."""
    for section in SECTION.split(page.read_text(encoding="utf-8")):
        if FIGURE.search(section) and MEASURED.search(section):
            assert "benchmarks/results/" in section, section.splitlines()[0]


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert name.startswith(("decisions/", "README")) or f"({name})" in index, name


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "decisions"], ids=page_id
)
def test_pages_name_public_modules_only(page: Path) -> None:
    names = set(NAME.findall(page.read_text(encoding="utf-8"))) - SPANS
    assert [name for name in sorted(names) if not is_public(name)] == []


def test_examples_import_public_packages_only() -> None:
    for file in (ROOT / "examples").rglob("*.py"):
        for module in IMPORT.findall(file.read_text(encoding="utf-8")):
            assert is_public(module), f"{file}: {module}"
