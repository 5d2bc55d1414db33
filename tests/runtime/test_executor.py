"""The executor's contract: order, sampling, masks, processors, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanofw.attention_backends.sdpa import SdpaBackend
from nanofw.contracts.attention_backend import FusedInputs
from nanofw.contracts.plan import HostMasks
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ExecutorError
from nanofw.kernels.qk_norm_rope import qk_norm_rope
from nanofw.kernels.rope import rotation
from nanofw.samplers.logits_processors.manifest import SuppressTokensOptions
from tests.runtime.checkpoints import reference_logits, write_qwen3
from tests.runtime.driver import GREEDY, Driver, RecordingSampler, component, make_executor

VOCAB = 128
SUPPRESS = "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("qwen3")
    return folder, write_qwen3(folder)


@pytest.fixture
def folder(checkpoint: tuple[Path, torch.nn.Module]) -> Path:
    return checkpoint[0]


def test_what_memory_holds_is_told_once_it_is_ready(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nanofw.runtime")
    capacity = make_executor(folder, num_blocks=40).capacity()
    tokens = 40 * capacity.block_size
    assert caplog.messages[-1] == (
        "rank 0 on cpu holds weights of 0.00 GiB, CUDA graphs of 0.00 GiB, and KV of 0.00 GiB: "
        f"{tokens:,} tokens"
    )


def prompt(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def test_greedy_tokens_are_the_references(checkpoint: tuple[Path, torch.nn.Module]) -> None:
    folder, model = checkpoint
    driver = Driver(make_executor(folder))
    row = driver.add(0, prompt(12))
    driver.prefill(row)
    driver.decode(row, steps=10)
    tokens = [*row.tokens, *row.outputs]
    expected = reference_logits(model, tokens).argmax(-1).tolist()
    assert row.outputs == expected[11:-1]


def generate(folder: Path, sampling: SamplingParams, how: str) -> list[int]:
    """Twelve tokens of one request in different company."""
    driver = Driver(make_executor(folder), seed=len(how))
    if how == "batched":
        others = [driver.add(row, prompt(9 + row, row), seed=row) for row in (1, 2, 5)]
        driver.step([(other, other.known) for other in others])
    row = driver.add(3, prompt(20, 9), sampling=sampling, seed=1234)
    if how == "chunked":
        driver.prefill(row, 7, 5)
    elif how == "batched":
        driver.step([(others[0], 1), (row, 20), (others[2], 1)])
    else:
        driver.prefill(row)
    if how == "preempted":
        driver.decode(row, steps=4)
        driver.remove(row)
        known = [*row.tokens, *row.outputs]
        row = driver.add(6, known, num_prompt_tokens=20, sampling=sampling, seed=1234)
        driver.prefill(row, 10)
        driver.decode(row, steps=6)
        return [*known[20:], *row.outputs]
    if how == "overlapped":
        driver.submit([(row, 1)])
        for _ in range(10):
            driver.submit([(row, 1)])
            driver.collect()
        driver.collect()
        return row.outputs
    if how == "batched":
        driver.decode(row, *others, steps=11)
    else:
        driver.decode(row, steps=11)
    return row.outputs


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.3, top_k=20),
    ],
)
def test_seeded_tokens_are_the_same_in_any_company(folder: Path, sampling: SamplingParams) -> None:
    alone = generate(folder, sampling, "alone")
    assert len(set(alone)) > 4
    for how in ("chunked", "batched", "preempted", "overlapped"):
        assert generate(folder, sampling, how) == alone, how


def bits_for(*rows: list[int]) -> np.ndarray:
    """Masks that allow only the given tokens."""
    bits = np.zeros((len(rows), VOCAB // 32), np.uint32)
    for line, allowed in enumerate(rows):
        for token in allowed:
            bits[line, token // 32] |= np.uint32(1 << (token % 32))
    return bits.view(np.int32)


def test_host_rows_wait_for_their_masks(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    rows = [driver.add(row, prompt(10, row)) for row in (4, 1, 2)]
    driver.step([(row, row.known) for row in rows])
    free = Driver(make_executor(folder))
    alone = free.add(0, prompt(10, 1))
    free.prefill(alone)
    free.decode(alone, steps=1)
    plan = driver.plan([(row, 1) for row in rows], host=[rows[2], rows[0]])
    driver.executor.submit(plan)
    with pytest.raises(ExecutorError, match="call provide"):
        driver.executor.collect()
    with pytest.raises(ExecutorError, match="does not wait"):
        driver.executor.provide(HostMasks(step=plan.step + 1, bits=bits_for([1], [2])))
    driver.executor.provide(HostMasks(step=plan.step, bits=bits_for([31, 32, 127], [63])))
    driver.collect()
    assert rows[0].outputs[-1] == 63
    assert rows[2].outputs[-1] in (31, 32, 127)
    logits = driver.sampler.logits[2, 11]
    assert torch.isfinite(logits).nonzero().flatten().tolist() == [31, 32, 127]
    assert rows[1].outputs == alone.outputs
    with pytest.raises(ExecutorError, match="does not wait"):
        driver.executor.provide(HostMasks(step=plan.step, bits=bits_for([1])))
    driver.decode(*rows, steps=1)


def test_a_mask_that_allows_nothing_fails_its_row_alone(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    rows = [driver.add(row, prompt(10, row)) for row in range(3)]
    plan = driver.plan([(row, 10) for row in rows], host=[rows[1]])
    driver.executor.submit(plan)
    driver.executor.provide(HostMasks(step=0, bits=bits_for([])))
    driver.collect()
    assert [row.failed for row in rows] == [False, True, False]


def test_B048_a_row_with_nan_fails_and_later_owners_of_its_blocks_do_not(folder: Path) -> None:
    """Token 5 has no finite embedding: rows that hold it fail, and their KV with them."""
    driver = Driver(make_executor(folder, num_blocks=6))
    with torch.inference_mode():
        model: Any = driver.executor._runner.model
        model.embed_tokens.weight[5] = torch.nan
    clean = [token if token != 5 else 6 for token in prompt(20)]
    bad, good = driver.add(0, [*clean[:9], 5, *clean[9:]]), driver.add(1, clean)
    driver.step([(bad, 21), (good, 20)])
    assert (bad.failed, good.failed) == (True, False)
    first = good.outputs[0]
    driver.step([(bad, 1), (good, 1)])
    driver.remove(bad)
    driver.remove(good)
    for generation in range(4):
        row = driver.add(generation % 2, clean)
        driver.prefill(row, 3)
        driver.decode(row, steps=3)
        assert not row.failed
        assert row.outputs[0] == first
        driver.remove(row)


def test_processors_run_for_their_rows_only(folder: Path) -> None:
    processor = component(
        "logits_processor", "suppress_tokens", SUPPRESS, options=SuppressTokensOptions()
    )
    driver = Driver(make_executor(folder, components={"logits_processor": [processor]}))
    plain = driver.add(0, prompt(10))
    driver.prefill(plain)
    best = plain.outputs[0]
    barred = driver.add(1, prompt(10), arguments={"suppress_tokens": [best]})
    same = driver.add(2, prompt(10))
    driver.step([(barred, 10), (same, 10)])
    assert same.outputs == [best]
    assert barred.outputs != [best]
    driver.remove(barred)
    again = driver.add(1, prompt(10))
    driver.step([(again, 10)])
    assert again.outputs == [best]


def test_processors_options_hold_for_all_rows(folder: Path) -> None:
    allowed = 17
    options = SuppressTokensOptions(token_ids=tuple(t for t in range(VOCAB) if t != allowed))
    processor = component("logits_processor", "suppress_tokens", SUPPRESS, options=options)
    driver = Driver(make_executor(folder, components={"logits_processor": [processor]}))
    rows = [driver.add(0, prompt(5)), driver.add(1, prompt(6), sampling=SamplingParams())]
    driver.step([(row, row.known) for row in rows])
    assert [row.outputs for row in rows] == [[allowed], [allowed]]


class PickySampler(RecordingSampler):
    """Supports less than the standard sampler."""

    def check(self, sampling: SamplingParams, vocab_size: int) -> None:
        if sampling.min_p:
            raise ValueError("min_p must be 0: this sampler has none")


def test_check_refuses_what_sampler_and_processors_refuse(folder: Path) -> None:
    processor = component(
        "logits_processor", "suppress_tokens", SUPPRESS, options=SuppressTokensOptions()
    )
    picky = component("sampler", "picky", "tests.runtime.test_executor:PickySampler")
    components = {"logits_processor": [processor], "sampler": picky}
    executor = make_executor(folder, components=components)
    executor.check(Request(id="a", prompt_token_ids=[1]))
    executor.check(Request(id="a", prompt_token_ids=[1], arguments={"suppress_tokens": [3]}))
    with pytest.raises(ValueError, match="min_p"):
        executor.check(Request(id="a", prompt_token_ids=[1], sampling=SamplingParams(min_p=0.5)))
    with pytest.raises(ValueError, match=r"logits_processor 'suppress_tokens'.*: .* 0 to 127"):
        executor.check(Request(id="a", prompt_token_ids=[1], arguments={"suppress_tokens": [500]}))


def test_a_third_step_in_flight_is_refused(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    assert driver.executor.capacity().max_in_flight == 2
    row = driver.add(0, prompt(4))
    driver.submit([(row, 4)])
    driver.submit([(row, 1)])
    with pytest.raises(ExecutorError, match="collect first"):
        driver.submit([(row, 1)])


def test_order_of_calls_is_checked(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    with pytest.raises(ExecutorError, match="without a submitted step"):
        driver.executor.collect()
    plan = driver.plan([(driver.add(0, prompt(4)), 4)])
    plan.step = 3
    with pytest.raises(ExecutorError, match="where plan 0 was due"):
        driver.executor.submit(plan)


def test_closed_executor_refuses_steps(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    row = driver.add(0, prompt(4))
    driver.executor.close()
    driver.executor.close()
    with pytest.raises(ExecutorError, match="closed"):
        driver.submit([(row, 4)])


def test_an_error_below_names_the_step(folder: Path) -> None:
    driver = Driver(make_executor(folder))

    def fail(batch: Any) -> Any:
        raise RuntimeError("the kernel is not in the mood")

    driver.executor._runner.backend.prepare = fail
    with pytest.raises(ExecutorError, match=r"step 0 failed: RuntimeError: the kernel"):
        driver.submit([(driver.add(0, prompt(4)), 4)])


def test_steps_report_their_seconds(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    result = driver.step([(driver.add(0, prompt(4)), 4)])
    assert result.seconds is not None
    assert 0 < result.seconds < 60
    assert result.failed is None


class FusedSdpa(SdpaBackend):
    """Takes the projection's output as it is, by the torch kernels."""

    def forward_fused(
        self, inputs: FusedInputs, layer: int, kv: Any, batch: Any, scale: float
    ) -> torch.Tensor:
        angles = rotation(inputs.cos_sin, batch.positions, inputs.qkv.dtype)
        config = self._config
        query, key, value = qk_norm_rope(
            inputs.qkv, inputs.query_norm, inputs.key_norm, inputs.norm_eps, angles,
            config.num_heads, config.num_kv_heads,
        )  # fmt: skip
        return self.forward(query, key, value, layer, kv, batch, scale)


def test_a_backends_fused_entry_is_taken(folder: Path) -> None:
    outputs = []
    for target in ("nanofw.attention_backends.sdpa:SdpaBackend", f"{__name__}:FusedSdpa"):
        backend = component("attention_backend", "b", target)
        driver = Driver(make_executor(folder, components={"attention_backend": backend}))
        row = driver.add(0, prompt(12))
        driver.prefill(row)
        driver.decode(row, steps=8)
        outputs.append(row.outputs)
    assert outputs[0] == outputs[1]


def test_rows_without_any_sample_in_a_step(folder: Path) -> None:
    driver = Driver(make_executor(folder))
    row = driver.add(0, prompt(30), sampling=GREEDY)
    assert len(driver.step([(row, 10)]).token_ids) == 0
    assert len(driver.step([(row, 20)]).token_ids) == 1
