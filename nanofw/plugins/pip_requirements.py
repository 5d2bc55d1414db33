"""Requirements as pip writes them. Only who meets one imports this: `packaging` takes a while."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion


def parse(text: str) -> Requirement:
    """Raises ValueError: it is not a requirement."""
    return Requirement(text)


def unmet(text: str) -> str | None:
    """What this environment lacks, with its install line; None: nothing."""
    install = f"pip install '{text}'"
    requirement = parse(text)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"needs {text}: {install}"
    if not holds(str(requirement.specifier), version):
        return f"needs {text}, but {requirement.name} {version} is installed: {install}"
    return None


def holds(specifier: str, version: str) -> bool:
    """Whether a version satisfies a specifier; an invalid version satisfies only an empty one.

    Raises:
        ValueError: the specifier is not one.
    """
    wanted = SpecifierSet(specifier)
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:
        return not wanted
