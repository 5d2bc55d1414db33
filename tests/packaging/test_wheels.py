"""nanofw and an outside package, built as wheels and used from a folder that is not the tree."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environment import EXAMPLE, ROOT, Environment, build_wheel, write_project

CONFIG = """\
base: sim
scheduler: {name: deadline, default_slack_s: 2.5}
input: {file: prompts.jsonl}
sampling: {max_tokens: 5}
output: {file: results.jsonl}
"""
PROMPTS = [
    {"id": "late", "prompt": "In the beginning", "deadline": 90.0},
    {"id": "soon", "prompt": "And it came to pass", "deadline": 0.2, "client": "a"},
    {"id": "none", "prompt": "The king said unto him,"},
]
POLICY = """\
from nanofw.plugins import Plugin, Policy, hookimpl

class Backwards(Policy):
    def key(self, request, view):
        return -request.arrival

@hookimpl
def scheduler():
    return Plugin("deadline", ":Backwards", api="scheduler/2")
"""
BROKEN = "import a_module_that_nobody_has\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user, with a configuration and prompts."""
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    lines = [json.dumps(prompt) for prompt in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def project_wheel(folder: Path, distribution: str, manifest: str, entry: str) -> Path:
    files = {"__init__.py": "", "manifest.py": manifest}
    return build_wheel(write_project(folder / distribution, distribution, files, entry))


def test_B111_the_wheel_has_every_sub_package(nanofw_wheel: Path) -> None:
    with zipfile.ZipFile(nanofw_wheel) as wheel:
        names = set(wheel.namelist())
    package = ROOT / "nanofw"
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names, f"missing from the wheel: {sorted(wanted - names)}"
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"nanofw"}


@pytest.mark.parametrize("preset", ["sim", "qwen3-demo"])
def test_B111_presets_and_embedded_model_run_from_another_folder(
    environment: Environment, tmp_path: Path, preset: str
) -> None:
    options = ("engine.device=cpu", "sampling.max_tokens=3", "output.file=out.jsonl")
    done = environment.run("nanofw", "run", preset, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [len(json.loads(line)["token_ids"]) for line in results] == [3] * len(results)
    assert results
    where = environment.run("python", "-c", "import nanofw; print(nanofw.__file__)", cwd=tmp_path)
    assert str(environment.bin.parent) in where.stdout


def test_an_outside_policy_is_selected_by_yaml(environment: Environment, folder: Path) -> None:
    done = environment.run("nanofw", "run", "run.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["late", "soon", "none"]
    explained = environment.run("nanofw", "explain", "run.yaml", "--json", cwd=folder)
    chosen = {choice["kind"]: choice for choice in json.loads(explained.stdout)["choices"]}
    assert chosen["scheduler"]["origin"] == "nanofw-deadline 0.1.0"
    assert chosen["scheduler"]["options"]["default_slack_s"] == 2.5
    wrong = environment.run("nanofw", "run", "run.yaml", "scheduler.default_slack_s=-1", cwd=folder)
    assert wrong.returncode == 2
    assert "scheduler.default_slack_s" in wrong.stderr


def test_the_outside_package_passes_its_own_tests(environment: Environment, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
    done = environment.run("python", "-m", "pytest", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_B091_two_packages_with_one_name(
    environment: Environment, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = tmp_path_factory.mktemp("second")
    second = project_wheel(
        made, "second-deadline", POLICY, '"scheduler.deadline" = "second_deadline.manifest"'
    )
    environment.install(second)
    try:
        done = environment.run("nanofw", "run", "run.yaml", cwd=folder)
        assert done.returncode == 2
        assert "nanofw-deadline 0.1.0" in done.stderr
        assert "second-deadline 1.2.3" in done.stderr
        for provider in ("nanofw-deadline", "second-deadline"):
            (folder / "named.yaml").write_text(
                f"base: sim\nscheduler: {{name: '{provider}:deadline'}}\n", encoding="utf-8"
            )
            done = environment.run("nanofw", "explain", "named.yaml", "--json", cwd=folder)
            assert done.returncode == 0, done.stderr
            chosen = {choice["kind"]: choice for choice in json.loads(done.stdout)["choices"]}
            assert chosen["scheduler"]["origin"].startswith(provider)
    finally:
        environment.uninstall("second-deadline")


@pytest.mark.slow  # tests/plugins/test_loading.py has it without a wheel
def test_B088_a_package_that_fails_on_import_fails_only_the_run_that_selects_it(
    environment: Environment, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = tmp_path_factory.mktemp("broken")
    broken = project_wheel(
        made, "broken-policies", BROKEN, '"scheduler.broken" = "broken_policies.manifest"'
    )
    environment.install(broken)
    try:
        done = environment.run("nanofw", "run", "run.yaml", cwd=folder)
        assert done.returncode == 0, done.stderr
        listed = environment.run("nanofw", "plugins", "list", "--json", cwd=folder)
        assert listed.returncode == 0, listed.stderr
        names = [plugin["name"] for plugin in json.loads(listed.stdout)["plugins"]]
        assert {"broken", "deadline", "fcfs"} <= set(names)
        done = environment.run("nanofw", "run", "run.yaml", "scheduler.name=broken", cwd=folder)
        assert done.returncode == 3
        assert "broken-policies 1.2.3" in done.stderr
        assert "import a_module_that_nobody_has" in done.stderr
        assert "ModuleNotFoundError" in done.stderr
        checked = environment.run("nanofw", "plugins", "list", "--check", "--json", cwd=folder)
        assert checked.returncode == 3
        states = {p["name"]: p["state"] for p in json.loads(checked.stdout)["plugins"]}
        assert states["broken"] == "failed"
        assert states["deadline"] == states["fcfs"] == "ok"
    finally:
        environment.uninstall("broken-policies")
