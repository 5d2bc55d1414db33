"""What the pages show is true: YAML loads, Python runs, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nanofw
from nanofw.assembly import assemble
from nanofw.config.load import load_config

ROOT = Path(nanofw.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


YAML = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in [
        ROOT / "docs" / name
        for name in ("configuration.md", "sampling.md", "tensor-parallel.md", "plugins/writing.md")
    ]
    for number, block in enumerate(blocks(page, "yaml"))
]


@pytest.mark.parametrize("block", YAML)
def test_yaml_of_the_pages_loads(block: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(block, encoding="utf-8")
    assert load_config(file).config.model is not None


def test_the_first_plugin_of_the_page_runs(tmp_path: Path) -> None:
    page = ROOT / "docs" / "plugins" / "writing.md"
    (tmp_path / "my_policy.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    (tmp_path / "run.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    with assemble(load_config(tmp_path / "run.yaml")) as engine:
        policy = engine.scheduler.policy
    assert type(policy).__name__ == "FewestTokens"
    assert policy.options.weight == 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
