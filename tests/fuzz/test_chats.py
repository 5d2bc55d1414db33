"""A small share of the fuzzer of chats; `make fuzz` runs a large one."""

from __future__ import annotations

import pytest

from tests.fuzz.chats import random_case, rendered_here, rendered_there


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_chats_are_rendered_as_transformers_does(first: int) -> None:
    for seed in range(first, first + 50):
        case = random_case(seed)
        assert rendered_here(case) == rendered_there(case), f"seed {seed}: {case}"
