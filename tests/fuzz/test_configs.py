"""A short share of the fuzzer of configurations; `make fuzz` runs a large one."""

from __future__ import annotations

import pytest

from tests.fuzz.configs import in_folder

SHARE = 200


@pytest.mark.parametrize("first", range(0, SHARE, 50))
def test_configurations_are_read_right_or_refused(first: int) -> None:
    with in_folder() as fuzzer:
        problems = [found for seed in range(first, first + 50) if (found := fuzzer.problem(seed))]
    assert not problems, problems[0]
