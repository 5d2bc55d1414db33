"""The wheels and the environment that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environment import EXAMPLE, ROOT, Environment, build_wheel, copy_project


@pytest.fixture(scope="session")
def nanofw_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nanofw-wheel") / "project"
    return build_wheel(copy_project(ROOT, folder, ["nanofw"]))


@pytest.fixture(scope="session")
def deadline_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deadline-wheel") / "project"
    return build_wheel(copy_project(EXAMPLE, folder, ["nanofw_deadline"]))


@pytest.fixture(scope="session")
def environment(
    tmp_path_factory: pytest.TempPathFactory, nanofw_wheel: Path, deadline_wheel: Path
) -> Environment:
    """nanofw and nanofw-deadline, installed from their wheels."""
    made = Environment(tmp_path_factory.mktemp("environment") / "venv")
    made.install(nanofw_wheel, deadline_wheel)
    return made
