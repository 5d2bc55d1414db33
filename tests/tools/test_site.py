"""The site of the documentation: each page and each link of it, the API reference too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra `site` is not installed")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, str(ROOT / "tools" / "site.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "docs/plugins/scheduler.html", "api/nanofw.plugins.html"):
        assert "nanofw" in (tmp_path / page).read_text(encoding="utf-8")
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "docs/troubleshooting.html" in home  # a page that the README does not link
