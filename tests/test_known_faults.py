"""The table of known faults says what the tests say."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def read_table() -> dict[str, str]:
    """What each fault is left to; empty: it has a test."""
    rows = re.findall(r"^\| (B\d+) \|.*\| ([^|]*) ?\|$", _read("KNOWN_FAULTS.md"), re.MULTILINE)
    return {fault: left_to.strip() for fault, left_to in rows}


def faults_with_a_test() -> set[str]:
    """Ids that occur as the name of a test function."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        found |= set(re.findall(r"def test_(B\d{3})_", path.read_text(encoding="utf-8")))
    return found


def test_every_known_fault_has_a_test_or_a_capability_that_it_waits_for() -> None:
    table, tested = read_table(), faults_with_a_test()
    assert len(table) >= 70
    without = {fault for fault, left_to in table.items() if not left_to} - tested
    assert not without, "faults without a test"
    stale = {fault for fault, left_to in table.items() if left_to} & tested
    assert not stale, "faults that have a test and are still left to a capability"
    assert not tested - set(table), "tests named by ids that the table does not have"


def _read(name: str) -> str:
    return (TESTS / name).read_text(encoding="utf-8")
