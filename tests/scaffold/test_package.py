"""New packages: their names, their files, and that nothing is overwritten."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
import yaml

from nanofw.cli.main import main
from nanofw.plugins import KINDS
from nanofw.scaffold import KINDS_OFFERED, PackageNames, names_of, package_files
from nanofw.testing.suites import SUITES


def names(kind: str) -> PackageNames:
    return names_of(kind, "TryForCausalLM" if kind == "model" else "try_this")


def test_every_kind_has_a_package_and_checks() -> None:
    assert set(KINDS_OFFERED) == set(KINDS)
    assert {kind.base for kind in KINDS.values()} <= set(SUITES)


@pytest.mark.parametrize("kind", KINDS_OFFERED)
def test_every_kind_has_a_package_whose_files_can_be_read(kind: str) -> None:
    made = names(kind)
    texts = package_files(made)
    module = made.module
    wanted = {"pyproject.toml", "README.md", "run.yaml", ".github/workflows/test.yml"}
    wanted |= {f"{module}/{name}" for name in ("__init__.py", "manifest.py", f"{made.noun}.py")}
    assert wanted <= set(texts)
    assert any(place.startswith("tests/test_") for place in texts)
    for place, text in texts.items():
        if place.endswith(".py"):
            ast.parse(text)
        elif place.endswith((".yaml", ".yml")):
            assert yaml.safe_load(text)
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"]["nanofw"] == {f"{kind}.{made.name}": f"{module}.manifest"}
    scope: dict = {}
    exec(texts[f"{module}/manifest.py"], scope)
    plugin = scope[kind]()
    assert (plugin.name, plugin.api) == (made.name, KINDS[kind].api)
    assert plugin.target == f"{module}.{made.noun}:{made.class_name}"


@pytest.mark.parametrize(("kind", "most"), [("scheduler", 10), ("logits_processor", 15)])
def test_the_body_of_a_simple_plugin_is_short(kind: str, most: int) -> None:
    made = names(kind)
    tree = ast.parse(package_files(made)[f"{made.module}/{made.noun}.py"])
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    body = ast.Module(cls.body[1:], type_ignores=[])  # the first is the docstring
    code = ast.unparse(body)
    assert len([line for line in code.splitlines() if line.strip()]) <= most


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shceduler", "mine"], "did you mean 'scheduler'"),
        (["scheduler", "Mine"], "cannot be the name of a scheduler"),
        (["scheduler", "my-policy"], "cannot be the name of a scheduler"),
        (["scheduler", "class"], "cannot be the name of a scheduler"),
        (["scheduler", "mine", "--host"], "--host is for a logits_processor alone"),
        (["model", "my_model"], "the architecture of its checkpoints"),
        (["scheduler", "fcfs"], "nanofw has a scheduler 'fcfs' itself"),
        (["scheduler", "mine", "--package", ".mine"], "cannot be the name of a package"),
        (["scheduler", "mine", "--package", "2mine"], "Python cannot import"),
        (["scheduler", "mine", "--package", "json"], "is installed already"),
        (["scheduler", "mine", "--package", "numpy"], "is installed already"),
    ],
)
def test_names_that_cannot_be_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", *words, "--into", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_class_does_not_take_the_name_of_its_base() -> None:
    assert names_of("scheduler", "policy").class_name == "PolicyPolicy"
    assert names_of("scheduler", "shortest_prompt").class_name == "ShortestPrompt"


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plugins", "new", "scheduler", "mine", "--into", str(tmp_path)]
    assert main(words) == 0
    assert "nanofw plugins test scheduler mine" in capsys.readouterr().out
    readme = tmp_path / "nanofw-mine" / "README.md"
    readme.write_text("mine", encoding="utf-8")
    assert main(words) == 2
    assert "exists: nothing was written" in capsys.readouterr().err
    assert readme.read_text(encoding="utf-8") == "mine"
