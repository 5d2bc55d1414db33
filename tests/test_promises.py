"""The table of promises says what the pages and the tests say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (.+) \| (\S+\.md) \| (\S+)::(\w+) \|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "tests" / "PROMISES.md").read_text(encoding="utf-8"))


def test_the_table_has_its_rows() -> None:
    assert len(TABLE) >= 15


@pytest.mark.parametrize(("promise", "page", "file", "test"), TABLE)
def test_a_promise_is_on_its_page_and_has_its_test(
    promise: str, page: str, file: str, test: str
) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert promise in text
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?(def {test}\(|class {test}\b|{test} = )", source, re.MULTILINE)
