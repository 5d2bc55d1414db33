"""What README and docs say works when it is followed word by word."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanofw.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+\.(?:py|yaml))\n")
NANOFW = "import sys; from nanofw.cli.main import main; sys.exit(main())"
PAGES = [README, ROOT / "docs" / "python.md", ROOT / "docs" / "structured-output.md"]
SMALL = {
    "input.workload.name=poisson": ["input.workload.num_requests=40"],
    "latency": ["bench.output_tokens=9", "bench.repeats=1"],
    "profile": ["profile.steps=2"],
}
"""Arguments that keep an example short here."""


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the README shows."""
    for language in ("yaml", "python"):
        for text in blocks(README, language):
            if match := FILE_NAME.match(text):
                (tmp_path / match[1]).write_text(text, encoding="utf-8")
    return tmp_path


def execute(code: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands() -> list[str]:
    texts = [text.replace("\\\n", " ") for text in blocks(README, "sh")]
    lines = [line for text in texts for line in text.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("nanofw ")]


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_readme_work(folder: Path, command: str) -> None:
    words = shlex.split(command)[1:]
    assert words[0] in COMMANDS
    for word, more in SMALL.items():
        words += more if word in words else []
    execute(NANOFW, *words, cwd=folder)
    if words[0] == "run":
        results = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(results) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_docs_works(tmp_path: Path, page: Path) -> None:
    scripts = [text for text in blocks(page, "python") if not FILE_NAME.match(text)]
    assert scripts
    for script in scripts:
        assert execute(script, cwd=tmp_path).strip()


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


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").rglob("*.md"))], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).as_posix()
        assert name.startswith(("decisions/", "README")) or f"({name})" in index, name
