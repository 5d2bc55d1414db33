"""Families that are split over ranks: two ranks draw the tokens of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, SamplingParams
from tests.models.family_folders import FAMILIES, write_family

ON_ONE_RANK = ("Olmo2", "Olmo3")
PROMPTS: list[Any] = [[3, 5, 8, 9, 11, 2, 7] * 4, [4] * 9]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ON_ONE_RANK])
def test_two_ranks_draw_the_tokens_of_one(family: str, seed: int, tmp_path: Path) -> None:
    write_family(tmp_path, family, seed, num_attention_heads=4, num_key_value_heads=2)
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    found: list[Any] = []
    for ranks in (1, 2):
        values = {"max_num_seqs": 4, "max_model_len": 128, "tensor_parallel_size": ranks}
        with LLM(str(tmp_path), device="cpu", dtype="float32", **values) as llm:
            results = llm.generate(PROMPTS, greedy)
            found.append([[output.token_ids for output in r.outputs] for r in results])
    assert found[0] == found[1]
