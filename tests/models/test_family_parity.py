"""Logits of each family are those of transformers, however the work is cut; so are whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.family_folders import FAMILIES, write_family
from tests.models.forced import check_forced
from tests.parity.test_greedy import PAIRWISE, check, settings

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, seed: int, tmp_path: Path) -> None:
    check_forced(tmp_path, write_family(tmp_path, family, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_runs_are_those_of_transformers(family: str, seed: int, tmp_path: Path) -> None:
    # A LongRoPE is that of the whole run: here runs and texts are within the trained length.
    changes = {"original_max_position_embeddings": 128} if family == "Phi3" else {}
    model = write_family(tmp_path, family, seed, **changes)
    check(tmp_path, model, 20, 12, settings(PAIRWISE[seed % len(PAIRWISE)]))
