"""docs/rooms.md says where things are; what it says is compared with the source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nanofw"
PAGE = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
FOLDERS = re.findall(r"^\| `(nanofw/[\w/]+)/` \| \S", PAGE, re.MULTILINE)
PLACES = re.findall(r"^\| [^`|]+ \| `(nanofw/[\w/]+\.py)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
SECTION = re.compile(r"^### `(nanofw/[\w/]+)/`\n(.*?)(?=^###? |\Z)", re.MULTILINE | re.DOTALL)


def folders() -> list[str]:
    """All folders of the package that have files."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    parents = {path.parent for path in files if "__pycache__" not in path.parts} - {PACKAGE}
    parents |= {parent for path in parents for parent in path.parents if PACKAGE in parent.parents}
    return sorted(path.relative_to(ROOT).as_posix() for path in parents)


def test_the_page_has_every_folder_once_and_no_other() -> None:
    assert sorted(FOLDERS) == folders()


def test_the_page_draws_the_import_rules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    expected = [re.findall(r"\w+", layer) for layer in layers]
    drawn = re.search(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert drawn is not None
    found = [re.findall(r"\w+", line) for line in drawn[1].splitlines()]
    assert found == [[room for room in layer if _exists(room)] for layer in expected]


def _exists(room: str) -> bool:
    """Rules may name rooms that are yet to come."""
    return (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()


def test_the_page_says_where_fifteen_things_are() -> None:
    assert len(PLACES) >= 15


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_what_the_page_locates_is_there(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE)


@pytest.mark.parametrize(
    ("folder", "text"), SECTION.findall(PAGE), ids=[name for name, _ in SECTION.findall(PAGE)]
)
def test_the_page_has_every_file_of_a_larger_room(folder: str, text: str) -> None:
    listed = re.findall(r"^\| `(\w+\.py)` \| \S", text, re.MULTILINE)
    files = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert sorted(listed) == sorted(files)


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__"}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    others = {"__pycache__", "faults", "fuzz", "mutants", "packaging", "parity", "soak", "tools"}
    assert tested - others <= rooms
