"""Which names of nanofw are public; docs/plugins/versions.md says it in words."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "plugins" / "versions.md"
PACKAGES = re.findall(r"^\| `(nanofw[\w.]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
PYTEST_PLUGIN = "nanofw.testing.pytest_plugin"


def is_public(name: str) -> bool:
    """Whether a dotted name is a public package, or a name that one lists."""
    if name in (*PACKAGES, PYTEST_PLUGIN):
        return True
    package, _, attribute = name.rpartition(".")
    if package in PACKAGES:
        return attribute in importlib.import_module(package).__all__
    return "." in package and is_public(package)  # a field or a method of a public class
