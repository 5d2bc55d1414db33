"""A run whose tokens are known ahead: chunked, beside others, from a cached prefix, preempted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models.family_folders import LONGEST
from tests.runtime.driver import Driver, make_executor
from tests.runtime.test_parity import Forced, random_tokens


def check_forced(folder: Path, model: Any, **changes: Any) -> None:
    """All logits of such a run are those of `model`, which sees whole texts."""
    driver = Driver(make_executor(folder, max_model_len=LONGEST, **changes))
    forced = Forced(driver, model)
    first, second = forced.add(0, 37, 60), forced.add(5, 70, 90)
    driver.prefill(first)
    driver.prefill(second, 16, 1, 20)
    driver.decode(first, second, steps=6)
    tokens = [*forced.texts[0][:32], *random_tokens(30, 77)]
    cached = forced.add(1, 55, 62, tokens=tokens, prefix_of=first, cached=32)
    driver.step([(first, 1), (cached, 23)])
    driver.remove(second)
    back = forced.add(4, 76, 90, tokens=forced.texts[5], num_prompt_tokens=70)
    driver.prefill(back, 11)
    driver.decode(back, cached, first, steps=4)
    forced.check(27)
