"""Build the site: the pages of the repository as they are, and an API reference.

    python tools/site.py [FOLDER]

The navigation is that of docs/README.md. A link that leads nowhere is an error. Needs the extra
`site`; the pages go to build/site unless a folder is named.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "pages"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("docs", "examples", "benchmarks")
PUBLIC = (
    "nanofw", "nanofw.plugins", "nanofw.testing", "nanofw.models.layers", "nanofw.kernels",
    "nanofw.samplers", "nanofw.compare", "nanofw.decisions",
)  # fmt: skip
"""Packages whose names are public; see docs/plugins/versions.md."""

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ENTRY = re.compile(r"\[([^\]]+)\]\(([^)\s#]+\.md)\)")
_SECTION = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    shutil.rmtree(STAGE, ignore_errors=True)
    stage()
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(STAGE),
        site_dir=str(target),
        nav=navigation(),
        strict=True,
    )
    build(config)
    print(target / "index.html")


def stage() -> None:
    """Copy the pages and what they link to, with a page for each folder that is linked."""
    pages = [ROOT / name for name in TOP]
    pages += [page for name in FOLDERS for page in sorted((ROOT / name).rglob("*.md"))]
    for page in pages:
        place = STAGE / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_LINK.sub(partial(_staged, page), page.read_text()))
    shutil.copy(ROOT / "tools" / "site.css", STAGE)
    for name in PUBLIC:
        (STAGE / "api").mkdir(exist_ok=True)
        (STAGE / "api" / f"{name}.md").write_text(f"# `{name}`\n\n::: {name}\n")


def _staged(page: Path, link: re.Match[str]) -> str:
    """A link of a page, whose target is staged, too. A link to a folder leads to its page."""
    if "://" in link[1] or link[1].startswith("mailto:"):
        return link[0]
    target = (page.parent / link[1]).resolve()
    place = STAGE / target.relative_to(ROOT)
    if target.is_dir():
        if not (target / "README.md").exists():
            place.mkdir(parents=True, exist_ok=True)
            (place / "README.md").write_text(listing(target))
        return f"]({link[1].rstrip('/')}/README.md)"
    if target.is_file() and (target.suffix != ".md" or target.is_relative_to(ROOT / "nanofw")):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, place)
    return link[0]


def listing(folder: Path) -> str:
    """A page that lists the files of a folder."""
    lines = [f"# {folder.name.capitalize()}", ""]
    for item in sorted(folder.rglob("*")):
        name = item.relative_to(folder).as_posix()
        if item.suffix == ".md":
            title = item.read_text().partition("\n")[0].lstrip("# ")
            lines.append(f"- [{title}]({name})")
        elif item.is_file():
            lines.append(f"- `{name}`")
    return "\n".join(lines) + "\n"


def navigation() -> list[dict[str, Any]]:
    """The sections of docs/README.md, and what lies beside them."""
    text = (ROOT / "docs" / "README.md").read_text()
    start, *parts = _SECTION.split(text)
    found: list[dict[str, Any]] = [{"nanofw": "README.md"}, {"All pages": "docs/README.md"}]
    found += _entries(start)
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        found.append({title: _entries(body)})
    found.append({"API": [{name: f"api/{name}.md"} for name in PUBLIC]})
    found.append({"Changes": "CHANGELOG.md"})
    return found


def _entries(text: str) -> list[dict[str, str]]:
    found = _ENTRY.findall(text)
    return [{name[:1].upper() + name[1:]: _in_stage(link)} for name, link in found]


def _in_stage(link: str) -> str:
    return (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()


if __name__ == "__main__":
    main()
