"""The files of a new package, from the templates of its kind."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import nanofw
from nanofw.contracts.kinds import KINDS
from nanofw.errors import NanofwError
from nanofw.scaffold.names import PackageNames

TEMPLATES = files("nanofw.scaffold") / "templates"
_ENDING = ".template"
KINDS_OFFERED = tuple(
    kind for kind in KINDS if (TEMPLATES / f"{kind}.manifest.py{_ENDING}").is_file()
)
"""Kinds for which there is a package."""
HOST = "host_processor"
"""What the templates of a logits processor on the host are called."""
_WITH_TORCH = ("model", "attention_backend", "sampler", "logits_processor")


def package_files(names: PackageNames) -> dict[str, str]:
    """The text of every file of a new package, by its path in it."""
    own = _own_templates(names)
    places = {
        "manifest.py": f"{names.module}/manifest.py",
        "plugin.py": f"{names.module}/{names.noun}.py",
        "checks.py": f"{names.module}/checks.py",
        "config.json": "checkpoint/config.json",
        "test.py": f"tests/test_{names.name.lower()}.py",
    }
    templates = {
        "pyproject.toml": _common("pyproject.toml"),
        "README.md": _common("README.md"),
        ".github/workflows/test.yml": _common("workflow.yml"),
        f"{names.module}/__init__.py": _common("init.py"),
        **{places.get(part, part): template for part, template in own.items()},
    }
    values = _values(names, own)
    return {
        place: Template(template.read_text(encoding="utf-8")).substitute(values)
        for place, template in templates.items()
    }


def write_package(names: PackageNames, into: Path) -> Path:
    """Write a new package into a folder; nothing that is there is overwritten.

    Returns:
        The folder of the package.

    Raises:
        NanofwError: the package's folder exists and is not empty.
    """
    texts = package_files(names)
    root = into / names.distribution
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise NanofwError(
            f"{root} exists: nothing was written. Take another name, or another folder with --into"
        )
    for place, text in texts.items():
        file = root / place
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    return root


def _common(name: str) -> Traversable:
    return TEMPLATES / f"{name}{_ENDING}"


def _own_templates(names: PackageNames) -> dict[str, Traversable]:
    """The templates of one kind by the rest of their names: `manifest.py`, `run.yaml`, ..."""
    kind = names.kind
    start = f"{HOST if names.is_host else kind}."
    found = {
        item.name.removeprefix(start).removesuffix(_ENDING): item
        for item in TEMPLATES.iterdir()
        if item.name.startswith(start)
    }
    if kind not in KINDS_OFFERED:
        raise NanofwError(
            f"nanofw plugins new has no package for the kind {kind}; it has some for: "
            f"{', '.join(KINDS_OFFERED)}"
        )
    return dict(sorted(found.items()))


def _values(names: PackageNames, own: dict[str, Traversable]) -> dict[str, str]:
    kind = KINDS[names.kind]
    major, minor = nanofw.__version__.split(".")[:2]
    needed = [f"nanofw>={major}.{minor},<{major}.{int(minor) + 1}"]
    needed += ["torch"] if kind.name in _WITH_TORCH and not names.is_host else []
    has_checks, has_compare = "checks.py" in own, "compare.yaml" in own
    return {
        "kind": kind.name,
        "text": kind.text,
        "api": kind.api,
        "name": names.name,
        "lower": names.name.lower(),
        "distribution": names.distribution,
        "module": names.module,
        "noun": names.noun,
        "class_name": names.class_name,
        "dependencies": ", ".join(f'"{item}"' for item in needed),
        "compare_line": "\nnanofw compare compare.yaml" if has_compare else "",
        "compare_row": "| `compare.yaml` | a comparison that it is part of |\n" * has_compare,
        "checks_row": (
            f"| `{names.module}/checks.py` | what the checks of the kind must know of it |\n"
            * has_checks
        ),
    }
