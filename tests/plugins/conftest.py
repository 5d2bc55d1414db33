"""A folder on the search path, and packages put into it."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.plugins.packages import Install, write_dist_info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path`; modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and str(tmp_path) in file:
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """`install("pkg", {"scheduler.x": "mod"}, mod=source)` puts a package into the site."""

    def put(name: str, points: Mapping[str, str], version: str = "1.0", **modules: str) -> Path:
        for module, source in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = write_dist_info(site, name, version, points)
        importlib.invalidate_caches()
        return info

    return put
