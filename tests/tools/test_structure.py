"""The figures of a made-up package: what is wrong with it is found, and nothing in a clean one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "structure.py"
CLEAN = {
    "nanofw/__init__.py": '"""The package."""\n\n__version__ = "1"\n',
    "nanofw/plugins/__init__.py": "from nanofw.shop.till import Till\n\n__all__ = ['Till']\n",
    "nanofw/shop/__init__.py": "",
    "nanofw/shop/till.py": "class Till:\n    def count(self, coins: list[int]) -> int: ...\n",
    "README.md": "Write `from nanofw.plugins import Till`.\n",
    "examples/buy.py": "from nanofw.plugins import Till\n",
}
SIZES = {"files": 4, "lines": 8, "statements without docstrings": 6}
NAMES = ", ".join(f"p{i}: int" for i in range(4))
PASS, INNER_PASS = "    pass\n", "        pass\n"


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def figures(root: Path, files: dict[str, str]) -> dict[str, Any]:
    """The figures of a clean package with these files beside or instead of its own."""
    done = run(written(root, CLEAN | files), "--json", str(root / "figures.json"))
    assert done.returncode == 0, done.stderr
    return json.loads((root / "figures.json").read_text(encoding="utf-8"))


def test_a_clean_package_gives_zeros(tmp_path: Path) -> None:
    found = figures(tmp_path, {})
    assert {name: item["value"] for name, item in found.items() if item["value"]} == SIZES
    assert not [name for name, item in found.items() if item["places"]]


def test_a_large_file_is_found(tmp_path: Path) -> None:
    found = figures(tmp_path, {"nanofw/shop/list.py": "x = 1\n" * 401, "nanofw/b.py": "\n" * 400})
    assert found["files above 400 lines"]["places"] == ["nanofw/shop/list.py 401"]


def test_a_class_in_two_files_is_found(tmp_path: Path) -> None:
    class_twice = "class _Coin:\n    pass\n\n\ndef make():\n    class _Coin:\n        pass\n"
    files = {"nanofw/a.py": class_twice, "nanofw/b.py": "\nclass _Coin:\n    pass\n"}
    found = figures(tmp_path, files)["class names in more than one file"]
    assert found == {"value": 1, "places": ["_Coin: nanofw/a.py:6, nanofw/b.py:2"]}


def test_plain_methods_are_counted_by_class(tmp_path: Path) -> None:
    text = "class A:\n    def add(self): ...\n    async def end(self): ...\n\n\ndef add(): ...\n"
    found = figures(tmp_path, {"nanofw/a.py": text, "nanofw/b.py": text.replace("A", "B")})
    assert found["classes with a method add"]["places"] == ["nanofw/a.py:1 A", "nanofw/b.py:1 B"]
    assert found["classes with a method end"]["value"] == 2
    assert found["classes with a method push"]["value"] == 0


def test_functions_of_triton_are_counted_apart(tmp_path: Path) -> None:
    text = f"""@triton.jit(do_not_specialize=["p0"])
def kernel({NAMES}, p4, p5):
{PASS * 40}
class A:
    def just_short(self, {NAMES}, *more):
{INNER_PASS * 39}
    @classmethod
    async def wide(cls, {NAMES}, /, *, p4, **more): ...

def long():
{PASS * 40}"""
    found = figures(tmp_path, {"nanofw/a.py": text})
    assert found["functions above 40 lines"]["places"] == ["nanofw/a.py:89 long 41"]
    assert found["functions above 5 parameters"]["places"] == ["nanofw/a.py:87 wide 6"]
    assert found["jit functions above 40 lines"]["places"] == ["nanofw/a.py:2 kernel 41"]
    assert found["jit functions above 5 parameters"]["places"] == ["nanofw/a.py:2 kernel 6"]


def test_import_circles_are_found(tmp_path: Path) -> None:
    files = {
        "nanofw/a.py": "from nanofw import b\n",
        "nanofw/b.py": "try:\n    from nanofw.shop.c import x\nexcept ImportError:\n    pass\n",
        "nanofw/shop/c.py": "import nanofw.a\n",
        "nanofw/shop/d.py": "def late():\n    from .e import x\n",
        "nanofw/shop/e.py": "from nanofw.shop import d\n",
        "nanofw/f.py": "if TYPE_CHECKING:\n    from nanofw.g import x\n",
        "nanofw/g.py": "from nanofw.f import x\n",
    }
    found = figures(tmp_path, files)
    assert found["import circles"]["places"] == ["nanofw.a nanofw.b nanofw.shop.c"]
    assert found["files in import circles"]["value"] == 3
    inside = found["import circles, imports in functions included"]["places"]
    assert inside == ["nanofw.a nanofw.b nanofw.shop.c", "nanofw.shop.d nanofw.shop.e"]


@pytest.mark.parametrize(
    ("label", "text", "path", "num"),
    [
        ("e2e, not e2el", "e2el_s = E2EL", "nanofw/a.py", 2),
        ("captured, not recorded", "class CudaRecorder: ...", "nanofw/runtime/a.py", 1),
        ("captured, not recorded", "class CudaRecorder: ...", "nanofw/bench/a.py", 0),
        ("sample, not draw", "def f(x): return x.drawn(num_draws=withdraw)", "nanofw/a.py", 2),
        ("sample, not draw", "axes.draw()", "nanofw/compare/chart.py", 0),
        ("key, not rank", "self.rank = Rank", "nanofw/core/a.py", 2),
        ("key, not rank", "num_ranks = world.rank", "nanofw/core/communicator.py", 0),
        ("row, not line or place", "from a import num_lines as places", "nanofw/runtime/a.py", 2),
        ("row, not line or place", "places = 1", "nanofw/runtime/workers/a.py", 0),
        ("dry run, not rehearsal", "x = 1", "nanofw/rehearsal.py", 1),
        ("micro-batch, not pass", "max_pass_tokens = PassInputs()", "nanofw/a.py", 2),
        ("num_preemptions, not preemptions", "preemptions = a.num_preemptions", "nanofw/a.py", 1),
    ],
)
def test_other_words_are_found(tmp_path: Path, label: str, text: str, path: str, num: int) -> None:
    found = figures(tmp_path, {path: f"{text}  # e2el drawn record line pass\n"})
    assert found[f"words: {label}"]["value"] == num


def test_words_of_strings_are_totals(tmp_path: Path) -> None:
    text = '"""A race of e2el."""\nx = {"e2el.mean": "the e2el", "front": f"{y} drawn"}\n'
    found = figures(tmp_path, {"nanofw/a.py": text})
    assert found["words: all in docstrings"]["places"] == ["nanofw/a.py: 2"]
    assert found["words: all in strings of one word"]["places"] == ["nanofw/a.py: 2"]
    assert found["words: all of these"]["value"] == 0


def test_hidden_types_are_counted(tmp_path: Path) -> None:
    text = """
from typing import Any, cast
x: Any = cast(int, getattr(y, "z")(hasattr(y, "Any")))  # type: ignore[attr-defined]
y = "# type: ignore"  # pyright: ignore
"""
    found = figures(tmp_path, {"nanofw/a.py": text})
    assert found["Any per 1,000 lines"]["value"] == round(1000 / 12, 1)
    assert found["calls of cast"]["value"] == 1
    assert found["calls of getattr and hasattr"]["value"] == 2
    assert found["comments that make a type checker ignore a line"]["value"] == 2


def test_private_modules_that_others_reach(tmp_path: Path) -> None:
    files = {
        "nanofw/kernels/__init__.py": '"""One a module."""\n',
        "nanofw/kernels/add.py": "",
        "nanofw/testing/__init__.py": '"""See `nanofw.testing.plugin`."""\nx = 1\n',
        "nanofw/testing/plugin.py": "",
        "nanofw/testing/inner.py": "",
        "tests/test_a.py": "def test():\n    from nanofw.shop import till, x\n",
        "docs/deep/page.md": "`nanofw.shop.till.Till`, [it](../nanofw/shop/till.py), nanofw.LLM\n",
        "docs/other.md": "nanofw.kernels.add, nanofw.testing.plugin, nanofw/shop/note.txt\n",
        "examples/a.yaml": "plugin: nanofw.testing.inner:x\n",
        "benchmarks/a.py": "TARGET = 'nanofw.shop.till:Till'\nimport nanofw.kernels.add\n",
    }
    found = figures(tmp_path, files)
    reached = {
        reader: found[f"private modules that {reader} reach, in each file"]["places"]
        for reader in ("tests", "docs", "examples", "benchmarks")
    }
    assert reached == {
        "tests": ["tests/test_a.py nanofw.shop", "tests/test_a.py nanofw.shop.till"],
        "docs": ["docs/deep/page.md nanofw.shop.till"],
        "examples": ["examples/a.yaml nanofw.testing.inner"],
        "benchmarks": ["benchmarks/a.py nanofw.shop.till"],
    }
    assert found["private modules that tests reach"]["value"] == 2


def test_the_table_shows_places_and_what_changed(tmp_path: Path) -> None:
    figures(tmp_path, {})
    before = tmp_path / "figures.json"
    written(tmp_path, {"nanofw/new.py": "e2el = 1\n"})
    done = run(tmp_path, "--list", "--compare", str(before))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["figure", "before", "after", "change"]
    assert ["files", "4", "5", "+1"] in lines
    assert ["words:", "e2e,", "not", "e2el", "0", "1", "+1"] in lines
    assert ["nanofw/new.py", "e2el:", "1"] in lines


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "holds no package nanofw" in done.stderr
