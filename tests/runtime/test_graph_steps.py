"""Which steps are replayed and what they are given, on a CPU with a plain backend.

The backend reads the lengths of a captured pass where a kernel would: from the device, when it
runs. So whatever the host forgets to send, or leaves from a step before, shows in the tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.attention_backends.sdpa import SdpaBackend, SdpaMetadata
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import DeviceSampler, SampledTokens
from nanofw.models.qwen3 import Qwen3ForCausalLM
from nanofw.runtime.graphs.capture import EagerCapturer
from nanofw.samplers.standard import StandardSampler
from tests.runtime.captured import carry_out, prompt
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import GREEDY, Driver, component, make_executor

SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=1.0, presence_penalty=1.0),
]
NUM_ROWS, LARGEST = 5, 70


class CapturableBackend(SdpaBackend):
    """The reference, over what the device says of a captured pass."""

    def prepare(self, batch: ForwardBatch) -> SdpaMetadata:
        if batch.max_chunks is None:
            return super().prepare(batch)
        counts = batch.query_starts.diff().numpy()
        used = int((batch.context_lens > 0).sum())
        assert not batch.context_lens[used:].any(), "rows without context are the last"
        if batch.max_chunks:
            assert not counts[used:].any()
        longer = np.flatnonzero(counts[:used] != 1)
        assert len(longer) == 0 or used - longer[0] <= batch.max_chunks
        assert (counts <= batch.host_query_lens).all()
        assert (batch.context_lens.numpy() <= batch.host_context_lens).all()
        real = replace(
            batch,
            host_query_lens=counts[:used],
            host_context_lens=batch.context_lens[:used].numpy(),
            block_tables=batch.block_tables[:used],
            host_block_tables=None,
        )
        return super().prepare(real)


class CapturableSampler(StandardSampler, DeviceSampler):
    """The reference, drawing for rows that stand on the device, the spare one among them."""

    variants: tuple[str, ...] = ("all",)

    def variant(self, rows: IntArray) -> str | None:
        return None if self._edits.concern(rows) else "all"

    def sample_on_device(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        *,
        sharded: bool = False,
    ) -> SampledTokens:
        token_ids = logits.argmax(-1).to(torch.int32)
        failed = torch.zeros(len(rows), dtype=torch.bool)
        real = rows < NUM_ROWS
        assert real[: int(real.sum())].all(), "padding is behind all others"
        numbers = (part[real].to(torch.int32).numpy() for part in (rows, positions))
        drawn = self.sample(logits[real].float(), *numbers)
        token_ids[real], failed[real] = drawn.token_ids, drawn.failed
        return SampledTokens(token_ids=token_ids, failed=failed)


BACKEND = component(
    "attention_backend", "capturable", "tests.runtime.test_graph_steps:CapturableBackend"
)
SAMPLER = component("sampler", "capturable", "tests.runtime.test_graph_steps:CapturableSampler")


class ShiftedQwen3(Qwen3ForCausalLM):
    """Turns the hidden states of rows that carry a number by so many places."""

    def check(self, arguments: Any) -> None:
        if arguments is not None and not isinstance(arguments, int):
            raise ValueError("arguments are a number")

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        hidden = super().forward(batch, pool)
        if not batch.arguments:
            return hidden
        assert len(batch.rows) == len(hidden), "every row samples here"
        shifts = [batch.arguments.get(row, 0) for row in batch.rows.tolist()]
        return torch.stack([line.roll(by) for line, by in zip(hidden, shifts, strict=True)])


SHIFTED = component("model", "shifted", "tests.runtime.test_graph_steps:ShiftedQwen3")


def make_driver(folder: Any, prefill_tokens: int | None, **components: Any) -> Driver:
    executor = make_executor(
        folder,
        components={"attention_backend": BACKEND, "sampler": SAMPLER, **components},
        max_num_seqs=NUM_ROWS,
        num_blocks=40,
    )
    if prefill_tokens is not None:
        with torch.inference_mode():
            executor._runner.capture(EagerCapturer(), prefill_tokens)
    return Driver(executor)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Driver, ...]:
    """One that runs eagerly, one with graphs of decode steps, others with graphs of all steps."""
    folder = tmp_path_factory.mktemp("qwen3")
    write_qwen3(folder, num_hidden_layers=2)
    return tuple(make_driver(folder, tokens) for tokens in (None, 0, 3, LARGEST))


actions = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "compute"]),
        st.integers(0, NUM_ROWS - 1),
        st.lists(st.integers(0, 40), min_size=NUM_ROWS, max_size=NUM_ROWS),
    ),
    min_size=3,
    max_size=12,
)


def check_that_all_draw_the_same(drivers: Any, todo: Any, overlap: bool) -> None:
    expected, *found = [carry_out(driver, todo, SAMPLINGS, overlap=overlap) for driver in drivers]
    assert found == [expected] * 3


@settings(max_examples=15)
@given(todo=actions, overlap=st.booleans())
def test_any_mix_of_steps_draws_the_same_tokens(drivers: Any, todo: Any, overlap: bool) -> None:
    check_that_all_draw_the_same(drivers, todo, overlap)


@pytest.mark.slow
@settings(max_examples=100)
@given(todo=actions, overlap=st.booleans())
def test_many_mixes_of_steps_draw_the_same_tokens(drivers: Any, todo: Any, overlap: bool) -> None:
    check_that_all_draw_the_same(drivers, todo, overlap)


def test_steps_are_counted_by_kind_and_reason(tmp_path: Any) -> None:
    write_qwen3(tmp_path, num_hidden_layers=1)
    driver = make_driver(tmp_path, LARGEST)
    long = driver.add(0, prompt(LARGEST + 9))
    driver.step([(long, LARGEST + 1)])
    driver.step([(long, 8)])
    driver.decode(long, steps=3)
    asking = driver.add(1, prompt(4, 1), sampling=replace(GREEDY, prompt_logprobs=0))
    driver.step([(long, 1), (asking, 4)])
    assert driver.executor.facts().graph_steps == {
        "replayed": 4,
        "replayed with prefill": 1,
        "prefill of more tokens than the largest graph": 1,
        "log probabilities of prompts": 1,
    }


def test_steps_with_arguments_for_the_model_run_eagerly(tmp_path: Any) -> None:
    """And only those."""
    write_qwen3(tmp_path, num_hidden_layers=1)
    found = []
    for tokens in (None, LARGEST):
        driver = make_driver(tmp_path, tokens, model=SHIFTED)
        plain = driver.add(0, prompt(6))
        driver.step([(plain, 6)])
        shifted = driver.add(1, prompt(6), arguments={"shifted": 5})
        driver.step([(plain, 1), (shifted, 6)])
        driver.decode(plain, shifted, steps=3)
        driver.decode(plain, steps=1)
        driver.remove(shifted)
        driver.decode(plain, steps=2)
        found.append((plain.outputs, shifted.outputs))
    assert found[0] == found[1]
    assert plain.outputs[: len(shifted.outputs)] != shifted.outputs
    assert driver.executor.facts().graph_steps == {
        "replayed": 4, "replayed with prefill": 1, "arguments for the model": 4,
    }  # fmt: skip


def test_lines_that_pad_a_draw_reach_no_row(drivers: Any) -> None:
    """Three rows sample, and four lines draw: the fourth is neither the first line's nor one that
    was left by a step before."""

    def a_chunk_before_three_draws(driver: Driver) -> list[list[int]]:
        chunk = driver.add(4, prompt(9, 4))
        short = [driver.add(row, prompt(1 + row, row)) for row in range(3)]
        driver.step([(chunk, 2), *((row, row.known) for row in short)])
        driver.step([(chunk, 7)])
        driver.decode(chunk, steps=5)
        for row in (chunk, *short):
            driver.remove(row)
        return [row.outputs for row in (chunk, *short)]

    def three_draws_after_four(driver: Driver) -> list[list[int]]:
        four = [driver.add(row, prompt(4, row)) for row in range(4)]
        driver.step([(row, 4) for row in four])
        driver.decode(*four, steps=1)
        for row in four:
            driver.remove(row)
        late = driver.add(3, prompt(12, 9))
        ones = [driver.add(row, prompt(1, 20 + row)) for row in range(3)]
        driver.step([(row, 1) for row in ones])
        driver.step([(late, 12)])
        driver.decode(late, steps=5)
        for row in (late, *ones):
            driver.remove(row)
        return [row.outputs for row in (late, *ones)]

    for play in (a_chunk_before_three_draws, three_draws_after_four):
        expected, *found = [play(driver) for driver in drivers]
        assert found == [expected] * 3
