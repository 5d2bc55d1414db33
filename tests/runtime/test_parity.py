"""The executor computes what transformers computes, however the work is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanofw.checkpoints.weight_files import INDEX
from tests.runtime.checkpoints import (
    FAMILIES,
    ROPES,
    VARIANTS,
    reference_logits,
    write_model,
    write_qwen3,
)
from tests.runtime.driver import Driver, make_executor

TOLERANCE = 1e-4  # of the logits' standard deviation


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder and reference model of a variant, made once."""
    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def get(name: str) -> tuple[Path, torch.nn.Module]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            family, changes = FAMILIES.get(name) or ("Qwen3", VARIANTS[name])
            made[name] = folder, write_model(folder, family, **changes)
        return made[name]

    return get


def random_tokens(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 128, count)]


class Forced:
    """Rows whose tokens are known ahead: the executor is told the next one after each step."""

    def __init__(self, driver: Driver, model: torch.nn.Module) -> None:
        self.driver, self.model = driver, model
        self.texts: dict[int, list[int]] = {}
        self.num_checked = 0

    def add(self, row: int, prompt: int, total: int, **options: Any) -> Any:
        tokens = options.pop("tokens", None) or random_tokens(total, row)
        self.texts[row] = tokens
        self.driver.sampler.script[row] = [*tokens, 0]
        return self.driver.add(row, tokens[:prompt], **options)

    def check(self, min_positions: int) -> None:
        """Compare all logits that were seen with the reference's."""
        reference = {row: reference_logits(self.model, t) for row, t in self.texts.items()}
        for (row, position), logits in self.driver.sampler.logits.items():
            expected = reference[row][position - 1]
            error = (logits - expected).abs().max() / expected.std()
            assert error < TOLERANCE, (row, position, float(error))
            self.num_checked += 1
        assert self.num_checked >= min_positions


@pytest.mark.parametrize("variant", [*VARIANTS, *FAMILIES])
def test_prompt_chunks_and_decode(checkpoints: Any, variant: str) -> None:
    folder, model = checkpoints(variant)
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    first, second = forced.add(0, 37, 60), forced.add(5, 70, 90)
    driver.prefill(first)
    driver.prefill(second, 16, 1, 20)
    driver.decode(first, second, steps=18)
    forced.check(38)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_dynamic_rope_beyond_the_trained_length(family: str, tmp_path: Path) -> None:
    """The reference takes the theta of the text's length; a run that of `max_model_len`."""
    rope = ROPES["dynamic"]
    model = write_model(tmp_path, family, max_position_embeddings=40, rope_parameters=rope)
    driver = Driver(make_executor(tmp_path, max_model_len=100))
    forced = Forced(driver, model)
    first, second = forced.add(0, 37, 100), forced.add(5, 90, 100)
    driver.prefill(first)
    driver.prefill(second, 16, 1, 20)
    driver.decode(first, second, steps=9)
    forced.check(20)


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_B069_block_sizes(checkpoints: Any, block_size: int) -> None:
    folder, model = checkpoints("gqa2")
    executor = make_executor(folder, block_size=block_size, num_blocks=300)
    driver = Driver(executor, seed=block_size)
    forced = Forced(driver, model)
    rows = [forced.add(row, prompt, prompt + 20) for row, prompt in enumerate((1, 15, 16, 33))]
    driver.step([(row, row.known) for row in rows])
    driver.decode(*rows, steps=19)
    forced.check(80)


def test_decodes_and_prefill_chunks_in_one_step(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    early = [forced.add(row, 10 + row, 60) for row in range(3)]
    driver.step([(row, row.known) for row in early])
    late = forced.add(6, 50, 70)
    driver.step([(early[0], 1), (late, 13), (early[2], 1)])
    driver.step([(late, 17), (early[1], 1)])
    driver.step([(late, 20), *((row, 1) for row in early)])
    driver.decode(late, *early, steps=10)
    forced.check(40)


def test_B018_a_chunk_sees_its_own_end_and_not_the_prompts(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder, max_num_batched_tokens=16))
    forced = Forced(driver, model)
    chunked = forced.add(0, 40, 50)
    driver.prefill(chunked, 16, 16)
    driver.decode(chunked, steps=5)
    forced.check(6)


def test_B020_a_chunk_that_is_not_the_last_draws_and_stores_nothing(checkpoints: Any) -> None:
    """Two steps in flight: the next chunk is submitted before the first was collected."""
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    row = forced.add(0, 40, 50)
    driver.submit([(row, 16)])
    driver.submit([(row, 16)])
    assert len(driver.collect().token_ids) == 0
    driver.submit([(row, 8)])
    assert len(driver.collect().token_ids) == 0
    driver.submit([(row, 1)])  # feeds a token that nobody has collected yet
    assert driver.collect().token_ids.tolist() == [forced.texts[0][40]]
    driver.submit([(row, 1)])
    driver.collect()
    driver.collect()
    assert row.outputs == forced.texts[0][40:43]
    forced.check(3)


def test_prefix_taken_from_another_rows_blocks(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    first = forced.add(0, 50, 60)
    driver.prefill(first)
    again = [*forced.texts[0][:48], *random_tokens(20, 77)]
    partly = forced.add(1, 60, 68, tokens=again, prefix_of=first, cached=32)
    wholly = forced.add(2, 49, 68, tokens=list(again), prefix_of=first, cached=48)
    driver.step([(first, 1), (partly, 28), (wholly, 1)])
    driver.decode(first, partly, wholly, steps=5)
    forced.check(19)


def test_rows_are_reused_blocks_too(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder, num_blocks=12))
    for generation in range(5):
        forced = Forced(driver, model)
        driver.sampler.logits.clear()
        rows = [
            forced.add(row, 30, 40, tokens=random_tokens(40, 10 * generation + row))
            for row in (3, 1, 0)
        ]
        driver.step([(row, row.known) for row in rows])
        driver.decode(*rows, steps=4)
        forced.check(15)
        for row in rows:
            driver.remove(row)


def test_a_request_returns_after_a_preemption_with_its_outputs(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    row = forced.add(2, 20, 60)
    driver.prefill(row)
    driver.decode(row, steps=7)
    driver.remove(row)
    text = forced.texts[2]
    back = forced.add(4, 28, 60, tokens=text, num_prompt_tokens=20)
    driver.prefill(back, 11)
    driver.decode(back, steps=7)
    forced.check(16)


def test_copied_blocks_serve_another_row(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder))
    forced = Forced(driver, model)
    first = forced.add(0, 32, 50)
    driver.prefill(first)
    fork = forced.add(1, 40, 50, tokens=[*forced.texts[0][:32], *random_tokens(18, 5)])
    fork.computed = 32
    for source, target in zip(first.blocks, fork.blocks[:2], strict=False):
        driver.copy(source, target)
    driver.step([(fork, 8), (first, 1)])
    driver.decode(first, fork, steps=4)
    forced.check(10)


def test_B083_positions_are_the_number_of_tokens_before(checkpoints: Any) -> None:
    folder, model = checkpoints("gqa2")
    executor = make_executor(folder)
    seen: list[list[int]] = []
    backend = executor._runner.backend
    original = backend.prepare

    def prepare(batch: Any) -> Any:
        seen.append(batch.positions.tolist())
        return original(batch)

    backend.prepare = prepare
    driver = Driver(executor)
    forced = Forced(driver, model)
    row = forced.add(0, 5, 20)
    driver.prefill(row, 3)
    driver.decode(row, steps=3)
    assert seen == [[0, 1, 2], [3, 4], [5], [6], [7]]


@pytest.mark.parametrize("max_tokens", [1, 5, 16])
def test_steps_are_computed_in_passes(checkpoints: Any, max_tokens: int) -> None:
    folder, model = checkpoints("gqa2")
    executor = make_executor(folder)
    executor._runner.max_micro_batch_tokens = max_tokens
    driver = Driver(executor)
    forced = Forced(driver, model)
    early = [forced.add(row, 10 + row, 60) for row in range(3)]
    late = forced.add(6, 50, 70)
    driver.step([(row, row.known) for row in early])
    driver.step([(early[0], 1), (late, 13), (early[2], 1)])
    driver.step([(late, 37), (early[1], 1)])
    driver.decode(late, *early, steps=3)
    forced.check(16)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    model = write_qwen3(tmp_path, max_shard_size="60KB")
    assert (tmp_path / INDEX).is_file()
    driver = Driver(make_executor(tmp_path))
    forced = Forced(driver, model)
    row = forced.add(0, 20, 30)
    driver.prefill(row)
    driver.decode(row, steps=5)
    forced.check(6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.02)])
def test_low_precision_stays_close(checkpoints: Any, dtype: str, tolerance: float) -> None:
    folder, model = checkpoints("gqa2")
    driver = Driver(make_executor(folder, dtype=dtype))
    forced = Forced(driver, model)
    row = forced.add(0, 30, 40)
    driver.prefill(row, 16)
    driver.decode(row, steps=5)
    reference = reference_logits(model, forced.texts[0])
    for (_, position), logits in driver.sampler.logits.items():
        expected = reference[position - 1]
        assert logits.dtype == torch.float32
        assert (logits - expected).pow(2).mean().sqrt() / expected.std() < tolerance
