"""A share of the random folders; `make fuzz` compares many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.checkpoints import compare, quiet
from tests.fuzz.family_keys import FAMILIES

FOLDERS = 3  # of each family


@pytest.mark.parametrize("family", FAMILIES)
def test_random_folders_are_read_as_transformers_reads_them(tmp_path: Path, family: str) -> None:
    quiet()
    found = {seed: compare(tmp_path / str(seed), family, seed) for seed in range(FOLDERS)}
    faults = {seed: outcome for seed, outcome in found.items() if outcome.startswith("FAULT")}
    assert not faults
    assert list(found.values()).count("equal") >= FOLDERS // 3, found
