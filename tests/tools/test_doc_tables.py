"""The tables of the docs say what the source says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "doc_tables.py"


def test_the_tables_of_the_docs_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python tools/doc_tables.py: {done.stdout}{done.stderr}"


def test_every_key_of_the_configuration_has_a_text() -> None:
    page = SCRIPT.parents[1] / "docs" / "configuration-reference.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
