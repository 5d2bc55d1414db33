"""A share of the fuzzer of traces; `make fuzz` reads many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.traces import try_case


@pytest.mark.parametrize("first", range(0, 600, 200))
def test_traces_are_read_right_or_refused(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 200):
        try_case(tmp_path, seed)
