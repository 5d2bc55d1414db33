"""The executor on an NVIDIA GPU: the same results, and no wait before `collect`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.contracts.requests import SamplingParams
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
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


BACKENDS = {
    "triton": ("nanofw.attention_backends.triton:TritonAttention", "float32", 1e-4),
    "flash_attn": ("nanofw.attention_backends.flash_attn:FlashAttention", "bfloat16", 3e-2),
}


def graph_driver(folder: Path, backend: str, *, graphs: bool) -> Driver:
    target, dtype, _ = BACKENDS[backend]
    plugin = component("attention_backend", backend, target)
    if backend == "flash_attn":
        from nanofw.attention_backends import flash_attn

        answer = flash_attn.probe("cuda", None)
        if isinstance(answer, str):
            pytest.skip(answer)
    return Driver(
        make_executor(
            folder, device="cuda", dtype=dtype, block_size=16 if backend == "triton" else 64,
            components={"attention_backend": plugin, "sampler": STANDARD},
            cuda_graphs=graphs, prefill_graphs=graphs,
        )
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_replayed_prefill_leaves_the_same_keys_and_values(tmp_path: Path, backend: str) -> None:
    """Prompts, chunks, an extend over a prefix, decoding rows beside them; all tokens known."""
    write_qwen3(tmp_path, head_dim=64)

    def pools(graphs: bool) -> list[torch.Tensor]:
        driver = graph_driver(tmp_path, backend, graphs=graphs)
        texts = {row: random_tokens(150, row) for row in range(4)}
        rows = [driver.add(row, texts[row], num_prompt_tokens=70) for row in (0, 1)]
        driver.step([(rows[0], 70)])
        driver.step([(rows[0], 1), (rows[1], 41)])
        shared = driver.add(2, texts[0][:64] + texts[2], prefix_of=rows[0], cached=64)
        driver.step([(rows[0], 1), (shared, 100), (rows[1], 29)])
        driver.step([(rows[0], 1), (rows[1], 1), (shared, 20)])
        driver.step([(rows[0], 77), (rows[1], 79), (shared, 30)])
        if graphs:
            assert driver.executor.facts().graph_steps == {
                "replayed": 5,
                "replayed with prefill": 5,
            }
        pool: Any = driver.executor._runner.pool
        return pool

    tolerance = BACKENDS[backend][2]
    for eager, replayed in zip(pools(False), pools(True), strict=True):
        error = (eager - replayed).abs().max() / eager.abs().max()
        assert error <= tolerance


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams(top_p=0.9)])
def test_graphs_change_no_token_and_wait_for_nothing(
    tmp_path: Path, sampling: SamplingParams
) -> None:
    write_qwen3(tmp_path, head_dim=64)

    def outputs(graphs: bool) -> list[list[int]]:
        driver = graph_driver(tmp_path, "triton", graphs=graphs)
        rows = [
            driver.add(row, random_tokens(9 + 30 * row, row), sampling=sampling, seed=row)
            for row in range(4)
        ]
        driver.step([(rows[0], rows[0].known)])
        driver.step([(rows[0], 1), (rows[1], rows[1].known), (rows[2], 11)])
        work = [(rows[0], 1), (rows[1], 1), (rows[2], rows[2].known - 11), (rows[3], 50)]
        plans = [driver.plan(work), driver.plan([*((row, 1) for row in rows[:3]), (rows[3], 49)])]
        with no_waiting():
            for plan in plans:
                driver.executor.submit(plan)
        driver.collect()
        driver.collect()
        driver.decode(*rows, steps=5)
        return [row.outputs for row in rows]

    assert outputs(True) == outputs(False)
