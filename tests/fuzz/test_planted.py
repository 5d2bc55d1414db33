"""Each fuzzer finds the faults that were planted for it, in few cases."""

from __future__ import annotations

import pytest

from tests.fuzz.planting import FUZZERS, planted_in

SHARE = 300
LATE = {"only_some_errors_refuse"}
"""Found after many cases; they are in the slow set."""
ALL = [
    pytest.param(fuzzer, name, marks=[pytest.mark.slow] if name in LATE else [])
    for fuzzer in FUZZERS
    for name in planted_in(fuzzer).names
]


def test_ten_faults_are_planted_for_each_fuzzer() -> None:
    assert all(len(planted_in(fuzzer).names) >= 10 for fuzzer in FUZZERS)


@pytest.mark.parametrize(("fuzzer", "name"), ALL)
def test_a_planted_fault_is_found(fuzzer: str, name: str) -> None:
    assert planted_in(fuzzer).cases_until_found(name, SHARE) is not None
