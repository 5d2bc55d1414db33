"""The executor on an NVIDIA GPU: the same results, and no wait before `collect`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nanofw.core.types import SamplingParams
from tests.runtime.checkpoints import reference_logits, write_qwen3
from tests.runtime.driver import Driver, component, make_executor
from tests.runtime.test_parity import random_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

STANDARD = component("sampler", "standard", "nanofw.samplers.standard:standard_sampler")


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it, an operation that waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_logits_are_the_references(tmp_path: Path) -> None:
    model = write_qwen3(tmp_path)
    driver = Driver(make_executor(tmp_path, device="cuda"))
    texts = {row: random_tokens(60, row) for row in (0, 3)}
    rows = []
    for row, tokens in texts.items():
        driver.sampler.script[row] = [*tokens, 0]
        rows.append(driver.add(row, tokens[:30]))
    driver.step([(rows[0], 17)])
    driver.step([(rows[0], 13), (rows[1], 30)])
    driver.decode(*rows, steps=12)
    assert len(driver.sampler.logits) == 26
    for (row, position), logits in driver.sampler.logits.items():
        expected = reference_logits(model, texts[row])[position - 1]
        assert (logits.cpu() - expected).abs().max() / expected.std() < 1e-4


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_p=0.9, top_k=50),
        SamplingParams(presence_penalty=0.5, bad_words=((1, 2),), min_tokens=3),
        SamplingParams(logprobs=3, prompt_logprobs=2),
    ],
)
def test_submit_waits_for_nothing(tmp_path: Path, sampling: SamplingParams) -> None:
    write_qwen3(tmp_path)
    executor = make_executor(tmp_path, device="cuda", components={"sampler": STANDARD})
    driver = Driver(executor)
    warm = [driver.add(row, random_tokens(20, row), sampling=sampling) for row in range(3)]
    driver.step([(row, 20) for row in warm])
    driver.decode(*warm, steps=2)
    late = driver.add(5, random_tokens(40, 9), sampling=sampling)
    plans = [driver.plan([*((row, 1) for row in warm), (late, 25)])]
    plans.append(driver.plan([*((row, 1) for row in warm), (late, 15)]))
    with no_waiting():
        for plan in plans:
            executor.submit(plan)
    assert len(driver.collect().token_ids) == 3
    assert len(driver.collect().token_ids) == 4


def test_pool_takes_its_share_of_the_device(tmp_path: Path) -> None:
    write_qwen3(tmp_path)
    executor = make_executor(tmp_path, device="cuda", num_blocks=None)
    blocks = executor.capacity().num_blocks
    block_bytes = executor._runner.backend.bytes_per_block()
    free, total = torch.cuda.mem_get_info()
    assert blocks * block_bytes < 0.9 * total
    assert total - free > 0.8 * total
    executor.close()
