"""docs/sampling.md names every parameter and its default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import nanofw
from nanofw.contracts.requests import SamplingParams
from nanofw.engine.request_checks import MAX_LOGPROBS, MAX_SAMPLES, check_sampling

PAGE = Path(nanofw.__file__).parent.parent / "docs" / "sampling.md"
ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[Any, str]]:
    """Default and allowed values by name."""
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: (yaml.safe_load(default), allowed) for name, default, allowed, _ in found}


def test_every_parameter_and_its_default_is_in_the_table() -> None:
    defaults = {field.name: field.default for field in fields(SamplingParams)}
    told = {name: tuple(v) if isinstance(v, list) else v for name, (v, _) in rows().items()}
    assert told == defaults


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0, 1e9], [-1e-9]),
        ("top_k", [1, 0, -1, 10**9], [-2]),
        ("top_p", [1e-9, 1], [0, 1.01]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("repetition_penalty", [1e-9, 1e9], [0, -1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("logit_bias", [{0: -100, 9: 100}], [{10: 0}, {-1: 0}, {0: 101}]),
        ("max_tokens", [1, None], [0]),
        ("min_tokens", [0, 16], [-1, 17]),
        ("n", [1, 1024], [0, 1025]),
        ("seed", [0, 2**64 - 1, None], [-1, 2**64]),
        ("logprobs", [0, 64, None], [-1, 65]),
        ("prompt_logprobs", [0, 64, None], [-1, 65]),
        ("stop_token_ids", [(), (9,)], [(10,)]),
    ],
)
def test_ranges_are_those_of_the_table(name: str, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        check_sampling(SamplingParams(**{name: value}), 10)
    for value in outside:
        with pytest.raises(ValueError, match=name):
            check_sampling(SamplingParams(**{name: value}), 10)
    assert (MAX_LOGPROBS, MAX_SAMPLES) == (64, 1024)
