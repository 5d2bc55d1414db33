"""What a type checker makes of the package that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.packaging.environment import Environment


@pytest.mark.slow
def test_every_type_checker_reads_the_same_types(environment: Environment, tmp_path: Path) -> None:
    done = environment.run(
        "python", "-m", "pyright", "--verifytypes", "nanofw", "--ignoreexternal", "--outputjson",
        cwd=tmp_path,
    )  # fmt: skip
    report = json.loads(done.stdout or "{}")
    assert "typeCompleteness" in report, done.stdout + done.stderr
    symbols = report["typeCompleteness"]["symbols"]
    assert symbols, report["generalDiagnostics"]
    assert "nanofw.contracts.scheduler.Policy.key" in {symbol["name"] for symbol in symbols}
    faults = [
        f"{symbol['name']}: {fault['message']}"
        for symbol in symbols
        for fault in symbol["diagnostics"]
        if fault["severity"] == "error"
    ]
    assert faults == []
