"""Captured steps with prefill against eager ones; see `captured.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.contracts.requests import SamplingParams
from nanofw.kernels.decode_inputs import DecodeInputs
from nanofw.kernels.step_inputs import StepInputs, gather_step_inputs
from nanofw.kernels.triton import step_inputs as triton_step_inputs
from nanofw.runtime.graphs import prefill as prefill_graphs
from nanofw.samplers.logits_processors.manifest import SuppressTokensOptions
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import device
from tests.runtime.captured import carry_out, make_driver, prompt
from tests.runtime.checkpoints import reference_logits, write_qwen3
from tests.runtime.driver import GREEDY, Driver, component

# The interpreter's numpy warns of what padded lines hold.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.02),
]
LARGEST = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    # Layers beyond the first run the same kernels, which take minutes in the interpreter.
    layers = 1 if device().type == "cpu" else 2
    return folder, write_qwen3(folder, num_hidden_layers=layers)


def captured(folder: Path, **changes) -> Driver:
    return make_driver(folder, graphs=True, prefill_tokens=LARGEST, **changes)


def eager(folder: Path, **changes) -> Driver:
    return make_driver(folder, graphs=False, **changes)


def pools_agree(left: Driver, right: Driver) -> None:
    """B082: padded tokens wrote nothing anywhere."""
    pools = (driver.executor._runner.pool for driver in (left, right))
    for one, other in zip(*pools, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def play(driver: Driver) -> list[list[int]]:
    """Prompts alone and several at once, chunks, extends over a prefix, decoding rows beside."""
    first = driver.add(0, prompt(21, 0), sampling=SAMPLINGS[0], seed=1)
    driver.prefill(first)
    rows = [driver.add(i, prompt(5 + 4 * i, i), sampling=SAMPLINGS[i], seed=i) for i in (1, 2)]
    driver.step([(row, row.known) for row in rows])
    shared = driver.add(
        3, first.tokens[:16] + prompt(23, 5), sampling=SAMPLINGS[3], seed=5,
        prefix_of=first, cached=16,
    )  # fmt: skip
    driver.submit([(first, 1), (rows[0], 1), (shared, 11)])  # two in flight
    driver.submit([(rows[1], 1), (first, 1), (shared, 12)])
    driver.collect()
    driver.collect()
    driver.remove(rows[1])
    late = driver.add(2, prompt(1, 9), sampling=replace(SAMPLINGS[1], temperature=1.2), seed=7)
    driver.step([(first, 1), (shared, 1), (late, 1)])
    driver.decode(first, rows[0], shared, late, steps=2)
    return [row.outputs for row in (first, *rows, shared, late)]


def test_replayed_steps_draw_the_same_tokens_and_leave_the_same_pool(checkpoint) -> None:
    folder, _ = checkpoint
    expected = play(plain := eager(folder))
    found = play(replayed := captured(folder))
    assert found == expected
    assert replayed.executor.facts().graph_steps == {"replayed": 7, "replayed with prefill": 5}
    pools_agree(plain, replayed)


def test_the_first_step_of_a_size_is_right_too(checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """It captures its graph; the second replays it."""
    folder, _ = checkpoint
    monkeypatch.setattr(prefill_graphs, "CAPTURED_AT_START", 0)

    def run(driver: Driver) -> list[list[int]]:
        rows = [driver.add(i, prompt(5 + i, i), sampling=SAMPLINGS[i], seed=i) for i in range(3)]
        driver.step([(rows[0], 5), (rows[1], 3)])
        driver.step([(rows[1], 3), (rows[2], 7)])
        driver.decode(*rows, steps=1)
        return [row.outputs for row in rows]

    plain, driver = eager(folder), make_driver(folder, graphs=True, prefill_tokens=100)
    assert run(driver) == run(plain)
    assert driver.executor.facts().graph_steps == {"replayed": 3, "replayed with prefill": 2}
    pools_agree(plain, driver)


@slow_in_interpreter
def test_chunks_of_a_prompt_see_all_that_came_before(checkpoint) -> None:
    """B083: position == number of tokens before it, in every replay."""
    folder, model = checkpoint
    driver = captured(folder)
    row = driver.add(2, prompt(60))
    driver.prefill(row, 1, 17, 33)
    driver.decode(row, steps=3)
    expected = reference_logits(model, [*row.tokens, *row.outputs]).argmax(-1).tolist()
    assert row.outputs == expected[59:-1]
    assert driver.executor.facts().graph_steps == {"replayed": 7, "replayed with prefill": 4}


@slow_in_interpreter
def test_what_no_graph_serves_runs_eagerly_and_is_counted(
    checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = checkpoint
    monkeypatch.setattr(prefill_graphs, "max_chunks", lambda num_tokens: 2)

    def run(driver: Driver) -> list[list[int]]:
        long = driver.add(0, prompt(LARGEST + 1))
        driver.prefill(long)
        asks = replace(SAMPLINGS[1], prompt_logprobs=1)
        asking = driver.add(1, prompt(6, 1), sampling=asks)
        result = driver.step([(asking, 6)])
        assert len(result.prompt_logprobs[1]) == 5
        driver.remove(long)
        driver.remove(asking)
        short = [driver.add(row, prompt(3, row)) for row in range(3)]
        driver.step([(row, 3) for row in short])
        driver.decode(*short, steps=1)
        return [row.outputs for row in (long, asking, *short)]

    driver = captured(folder)
    assert run(driver) == run(eager(folder))
    assert driver.executor.facts().graph_steps == {
        "replayed": 1,
        "replayed with prefill": 0,
        "prefill of more tokens than the largest graph": 1,
        "log probabilities of prompts": 1,
        "more prompts in a step than a graph takes": 1,
    }


@slow_in_interpreter
def test_rows_that_need_the_host_draw_outside_of_the_graph(checkpoint) -> None:
    folder, _ = checkpoint
    target = "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens"
    penalised = SamplingParams(temperature=0, presence_penalty=1.5, logprobs=2)

    def tokens(make, suppressed: list[int]) -> tuple[list[int], list[int]]:
        options = SuppressTokensOptions(token_ids=tuple(suppressed))
        processor = component("logits_processor", "suppress_tokens", target, options=options)
        driver = make(folder, logits_processor=[processor])
        rows = [
            driver.add(0, prompt(6)),
            driver.add(1, prompt(4, 1), sampling=penalised),
        ]
        result = driver.step([(row, row.known) for row in rows])
        assert set(result.logprobs) == {1}
        driver.decode(*rows, steps=2)
        return rows[0].outputs, rows[1].outputs

    first = tokens(captured, [])
    assert tokens(eager, []) == first
    without = tokens(captured, [first[0][0]])
    assert first[0][0] not in without[0]
    assert tokens(eager, [first[0][0]]) == without


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "step"]),
        st.integers(0, 3),
        st.lists(st.integers(0, 22), min_size=4, max_size=4),
    ),
    min_size=3,
    max_size=9,
)


@pytest.fixture(scope="module")
def pair(checkpoint):
    """An executor that runs eagerly and one that replays, for all mixes of steps."""
    folder, _ = checkpoint
    return eager(folder), captured(folder)


# `test_graph_steps.py` tries more mixes.
@slow_in_interpreter
@settings(max_examples=2 if device().type == "cpu" else 40, derandomize=True)
@given(actions=steps)
def test_any_mix_of_steps_draws_the_same_tokens(pair, actions) -> None:
    plain, replayed = pair
    assert carry_out(replayed, actions, SAMPLINGS) == carry_out(plain, actions, SAMPLINGS)
    pools_agree(plain, replayed)
    for reason in replayed.executor.facts().graph_steps:
        assert reason.startswith("replayed") or "more tokens" in reason


@pytest.mark.parametrize("gather", [gather_step_inputs, triton_step_inputs.gather_step_inputs])
def test_inputs_are_gathered_as_lines_say(gather) -> None:
    generator = torch.Generator().manual_seed(0)
    place = device()
    tokens = torch.randint(0, 99, (6, 40), generator=generator, dtype=torch.int32).to(place)
    tables = torch.randint(0, 50, (6, 10), generator=generator, dtype=torch.int32).to(place)
    #       row, start, count, samples; then padding
    rows = np.array([[3, 17, 1, 1], [0, 0, 1, 0], [1, 5, 6, 1], [4, 0, 3, 0]])
    ends = rows[:, 2].cumsum()
    lines = np.zeros((5, 4), np.int64)
    lines[:4] = np.stack((rows[:, 0], rows[:, 1], ends, [0, 2, -1, -1]), axis=1)
    lines[4] = 5, 0, ends[-1], -1
    inputs = StepInputs.allocate(14, DecodeInputs.allocate(5, 10, place))
    gather(torch.from_numpy(lines).to(place), tokens, tables, 4, inputs)
    owners = np.repeat(rows[:, 0], rows[:, 2])
    positions = np.concatenate([np.arange(s, s + n) for _, s, n, _ in rows])
    count = len(owners)
    assert inputs.positions.tolist() == [*positions, *[0] * (14 - count)]
    assert inputs.token_ids[:count].tolist() == tokens.cpu()[owners, positions].tolist()
    blocks = tables.cpu().long()[owners, positions // 4]
    assert inputs.slots[:count].tolist() == (blocks.numpy() * 4 + positions % 4).tolist()
    assert inputs.slots[count:].tolist() == [-1] * (14 - count)
    assert inputs.query_starts.tolist() == [0, *ends, ends[-1]]
    assert inputs.context_lens.tolist() == [18, 1, 11, 3, 0]
    assert inputs.rows.tolist() == [3, 1, 5, 5, 5]
    assert inputs.next_positions.tolist() == [18, 11, 0, 0, 0]
    assert inputs.logits_indices.tolist() == [0, 7, 0, 0, 0]
    for line, (row, start, num_tokens, _) in enumerate(rows):
        used = -(-(start + num_tokens) // 4)
        assert torch.equal(inputs.block_tables[line, :used], tables[row, :used])
