"""Captured decode steps against eager ones; see `captured.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanofw.contracts.requests import SamplingParams
from nanofw.kernels.decode_inputs import DecodeInputs, gather_decode_inputs
from nanofw.kernels.triton import decode_inputs as triton_decode_inputs
from nanofw.samplers.logits_processors.manifest import SuppressTokensOptions
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import device
from tests.runtime.captured import make_driver, prompt
from tests.runtime.checkpoints import reference_logits, write_qwen3
from tests.runtime.driver import GREEDY, component

# The interpreter's numpy warns of what padded lines hold.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.7),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    # Layers beyond the first run the same kernels, which take minutes in the interpreter.
    layers = 1 if device().type == "cpu" else 2
    return folder, write_qwen3(folder, num_hidden_layers=layers)


def run(folder: Path, graphs: bool):
    """Three requests of all kinds, one of which leaves and another comes in its row."""
    driver = make_driver(folder, graphs)
    rows = [
        driver.add(i, prompt(5 + 4 * i, i), sampling=sampling, seed=i)
        for i, sampling in enumerate(SAMPLINGS)
    ]
    driver.step([(row, row.known) for row in rows])
    for _ in range(2):
        driver.step([(row, 1) for row in rows])
    driver.remove(rows[1])
    late = driver.add(1, prompt(7, 9), sampling=replace(SAMPLINGS[1], temperature=1.2), seed=7)
    driver.step([(rows[0], 1), (rows[2], 1), (late, 7)])
    alive = [rows[0], rows[2], late]
    driver.step([(row, 1) for row in alive])
    driver.submit([(row, 1) for row in alive])  # two in flight
    driver.submit([(row, 1) for row in alive[:2]])
    driver.collect()
    driver.collect()
    return driver, [row.outputs for row in [*rows, late]]


def test_replayed_steps_draw_the_same_tokens_and_leave_the_same_pool(checkpoint) -> None:
    folder, _ = checkpoint
    eager, expected = run(folder, graphs=False)
    captured, outputs = run(folder, graphs=True)
    assert outputs == expected
    assert captured.executor.facts().graph_steps == {"replayed": 5, "prefill": 2}
    assert eager.executor.facts().graph_steps == {}
    for left, right in zip(
        eager.executor._runner.pool, captured.executor._runner.pool, strict=True
    ):
        # B082: padded lines wrote nothing anywhere.
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@slow_in_interpreter  # the test before says the same of a replayed step and an eager one
def test_B083_replayed_steps_continue_at_the_right_position(checkpoint) -> None:
    folder, model = checkpoint
    driver = make_driver(folder, graphs=True)
    row = driver.add(2, prompt(12))
    driver.prefill(row)
    driver.decode(row, steps=6)
    expected = reference_logits(model, [*row.tokens, *row.outputs]).argmax(-1).tolist()
    assert row.outputs == expected[11:-1]


@slow_in_interpreter  # `test_graph_steps.py` has rows that edit logits
def test_rows_with_a_processor_draw_outside_of_the_graph(checkpoint) -> None:
    folder, _ = checkpoint
    target = "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens"

    def tokens(graphs: bool, suppressed: list[int]) -> list[int]:
        options = SuppressTokensOptions(token_ids=tuple(suppressed))
        processor = component("logits_processor", "suppress_tokens", target, options=options)
        driver = make_driver(folder, graphs, logits_processor=[processor])
        row = driver.add(0, prompt(6))
        driver.prefill(row)
        driver.decode(row, steps=4)
        return row.outputs

    first = tokens(True, [])
    assert tokens(False, []) == first
    without = tokens(True, [first[2]])
    assert first[2] not in without
    assert tokens(False, [first[2]]) == without


def test_inputs_gathered_by_the_kernel_equal_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 99, (4, 20), generator=generator, dtype=torch.int32)
    tables = torch.randint(0, 50, (4, 5), generator=generator, dtype=torch.int32)
    lines = torch.tensor([[2, 19], [0, 0], [3, -1], [1, 7]])
    expected = DecodeInputs.allocate(4, 5, torch.device("cpu"))
    gather_decode_inputs(lines, tokens, tables, 4, expected)
    found = DecodeInputs.allocate(4, 5, device())
    triton_decode_inputs.gather_decode_inputs(
        lines.to(device()), tokens.to(device()), tables.to(device()), 4, found
    )
    for name in ("rows", "token_ids", "positions", "next_positions", "slots", "context_lens"):
        left, right = getattr(found, name).cpu(), getattr(expected, name)
        real = lines[:, 1] >= 0
        assert torch.equal(left[real], right[real]), name
    assert found.slots[2] == -1
    assert found.context_lens[2] == 0
    for line, (_, position) in enumerate(lines.tolist()):
        used = max(position, 0) // 4 + 1
        assert torch.equal(
            found.block_tables[line, :used].cpu(), expected.block_tables[line, :used]
        )
