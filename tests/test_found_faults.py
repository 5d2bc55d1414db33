"""The table of found faults says what the tests say."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def read_table() -> dict[str, str]:
    """The file of each fault's tests."""
    text = (TESTS / "FOUND_FAULTS.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| (F\d{3}) \|.*\| (\S+) \|$", text, re.MULTILINE))


def faults_by_file() -> dict[str, set[str]]:
    """The ids that occur as names of test functions, by file."""
    return {
        str(path.relative_to(TESTS.parent)): set(
            re.findall(r"def test_(F\d{3})_", path.read_text(encoding="utf-8"))
        )
        for path in TESTS.rglob("*.py")
    }


def test_every_fault_has_its_test_where_the_table_says() -> None:
    table, tested = read_table(), faults_by_file()
    absent = {fault: file for fault, file in table.items() if fault not in tested.get(file, ())}
    assert table
    assert not absent, "faults without a test in the file that the table names"
    assert not set().union(*tested.values()) - set(table), "tests of faults that the table lacks"


def test_the_table_is_sorted() -> None:
    assert list(read_table()) == sorted(read_table())
