"""Walks through the package are counted, and what has moved since is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "reading.py"
PAGE = """
# Reading

## A walk

1. `nanofw/till.py`: `Till` and its `count`
2. `nanofw/gone.py`: `lost`

## Hops

| leg | hops |
|---|---|
| all | `nanofw/till.py`: `count` `give`; `nanofw/shop.py`: `open_shop` |

## Nothing
"""
FILES = {
    "docs/reading.md": PAGE,
    "nanofw/till.py": "class Till:\n    def count(self): ...\n",
    "nanofw/shop.py": "def open_shop(): ...\n",
}


def test_walks_are_counted_and_what_moved_is_named(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "A walk: 2 files, 3 names",
        "  not there: nanofw/gone.py",
        "Hops: 2 files, 3 names",
        "  not there: nanofw/till.py give",
    ]


def test_a_step_is_traced() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--step"], capture_output=True, text=True, check=True
    )
    listed = done.stdout.partition("A steady decode step: ")[2].split()
    assert {"engine/engine.py", "runtime/runner.py", "samplers/standard.py"} <= set(listed)
