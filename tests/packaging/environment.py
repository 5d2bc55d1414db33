"""Wheels built from source trees, and environments into which they are installed.

An environment is a venv of its own that finds the packages of this interpreter by links, all but
nanofw: what is tested is the wheel, not the tree. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugins" / "nanofw-deadline"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "dist", "*.egg-info", ".*")
PROJECT_FILES = ("pyproject.toml", "README.md", "LICENSE")


def copy_project(source: Path, target: Path, packages: Iterable[str]) -> Path:
    """What a build needs of a project, without leftovers of earlier builds."""
    target.mkdir()
    for name in PROJECT_FILES:
        if (source / name).exists():
            shutil.copy(source / name, target)
    for package in packages:
        shutil.copytree(source / package, target / package, ignore=LEFT_OUT)
    return target


def write_project(folder: Path, distribution: str, files: dict[str, str], entry: str) -> Path:
    """A small project of one package with one entry point, `"KIND.NAME" = "module"`."""
    package = distribution.replace("-", "_")
    (folder / package).mkdir(parents=True)
    for name, text in files.items():
        (folder / package / name).write_text(text, encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "1.2.3"

[project.entry-points.nanofw]
{entry}

[tool.setuptools]
packages = ["{package}"]
""",
        encoding="utf-8",
    )
    return folder


def build_wheel(project: Path) -> Path:
    """The wheel of a project, built with the tools that are installed."""
    out = project / "wheels"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(project)], check=True, capture_output=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    return wheel


class Environment:
    """A fresh environment."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        venv.EnvBuilder(symlinks=os.name != "nt", with_pip=False).create(folder)
        links = folder / "packages"
        _link_packages(links)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(f"{links}\n", encoding="utf-8")

    def install(self, *wheels: Path) -> None:
        """Install wheels and nothing that they depend on."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        options = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
        names = [str(wheel) for wheel in wheels]
        subprocess.run([*pip, *options, *names], check=True, capture_output=True, timeout=120)

    def uninstall(self, *distributions: str) -> None:
        """Take distributions away again."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        options = ["uninstall", "--quiet", "--yes", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, *distributions], check=True, capture_output=True)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs in a folder."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env=_plain_environment() | self._first_on_path(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def _first_on_path(self) -> dict[str, str]:
        """Programs that look for a `python` find the environment's."""
        return {"PATH": os.pathsep.join((str(self.bin), os.environ.get("PATH", "")))}


def install_with_tests(
    environment: Environment, source: Path, package: str, folder: Path, *beside: str
) -> Path:
    """Install a project's wheel; the folder then has its tests, what it has `beside`, and how
    pytest is set up."""
    environment.install(build_wheel(copy_project(source, folder / "project", [package])))
    for name in ("tests", *beside):
        shutil.copytree(source / name, folder / name)
    shutil.copy(source / "pyproject.toml", folder)
    return folder


def _plain_environment() -> dict[str, str]:
    """The process's environment without what would let the tree in, or colours."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NANOFW_PLUGINS", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def _link_packages(folder: Path) -> None:
    folder.mkdir()
    for path in _package_folders(sys.path):
        for item in path.iterdir():
            ours = item.name.startswith(("nanofw", "__editable__")) or item.suffix == ".pth"
            if not ours and not (folder / item.name).exists():
                (folder / item.name).symlink_to(item)


def _package_folders(search_path: Sequence[str]) -> list[Path]:
    names = ("site-packages", "dist-packages")
    return [Path(p) for p in search_path if Path(p).name in names and Path(p).is_dir()]
