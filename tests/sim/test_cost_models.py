"""Cost models: how they scale with the work, and what memory they leave for KV."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.executor import Components, ExecutorConfig
from nanofw.contracts.plan import StepPlan
from nanofw.errors import ExecutorError, ModelError
from nanofw.plugins import Component
from nanofw.sim.constant import ConstantCost, ConstantOptions
from nanofw.sim.devices import DEVICES
from nanofw.sim.executor import SimExecutor
from nanofw.sim.manifest import cost_model
from nanofw.sim.options import SimOptions
from nanofw.sim.roofline import Roofline, RooflineOptions
from nanofw.sim.shapes import SHAPES, shape
from nanofw.sim.work import StepWork


@pytest.mark.parametrize("memory_gb", [1e308, 1e20, 0.0, float("nan")])
def test_a_device_has_the_memory_of_a_device(memory_gb: float) -> None:
    with pytest.raises(ValidationError, match="memory_gb"):
        RooflineOptions(memory_gb=memory_gb)


def facts(name: str = "qwen3-8b", **changes: Any) -> CostModelConfig:
    values = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    return CostModelConfig(spec=shape(name), **(values | changes))


def roofline(name: str = "qwen3-8b", **options: Any) -> Roofline:
    return Roofline(RooflineOptions(**options), facts(name))


def step(*lines: tuple[int, int], num_decodes: int = 0) -> StepPlan:
    """Lines are (start, num_tokens)."""
    starts, nums = (np.array(column, np.int32) for column in zip(*lines, strict=True))
    rows = np.arange(len(lines), dtype=np.int32)
    return StepPlan(
        step=0, rows=rows, num_tokens=nums, starts=starts, samples=rows >= 0,
        num_decodes=num_decodes,
    )  # fmt: skip


def decodes(num_rows: int, context: int) -> StepPlan:
    return step(*[(context - 1, 1)] * num_rows, num_decodes=num_rows)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=6))
def test_work_counts_what_a_loop_counts(lines: list[tuple[int, int]]) -> None:
    pairs = sum(start + 1 + i for start, num in lines for i in range(num))
    work = StepWork.of(step(*lines))
    assert work.num_pairs == pairs
    assert work.num_keys == sum(map(sum, lines))
    assert work.num_tokens == sum(num for _, num in lines)
    assert (work.num_rows, work.num_sampled, work.num_prefills) == (len(lines),) * 3


def test_work_of_decodes_equals_the_general_count() -> None:
    plan = step((9, 1), (4, 1), num_decodes=2)
    fast, general = StepWork.of(plan), StepWork.of(step((9, 1), (4, 1)))
    assert fast.num_prefills == 0
    assert (fast.num_pairs, fast.num_keys, fast.num_tokens) == (
        general.num_pairs, general.num_keys, general.num_tokens,
    )  # fmt: skip


def test_constant() -> None:
    model = ConstantCost(ConstantOptions(seconds_per_step=0.5, seconds_per_token=0.1), facts())
    assert model.seconds(step((0, 3), (5, 1))) == pytest.approx(0.9)
    assert isinstance(model, CostModel)


class TestRoofline:
    def test_a_lone_decode_reads_all_weights_once(self) -> None:
        """Qwen3-8B without its embedding: 7.57e9 weights; 15.1 GB at 80% of 3350 GB/s."""
        seconds = roofline(overhead_us=0, overhead_per_row_us=0).seconds(decodes(1, 1))
        assert seconds == pytest.approx(7.57e9 * 2 / (0.8 * 3350e9), rel=0.01)

    def test_a_long_prefill_is_arithmetic(self) -> None:
        """2 FLOP per weight and token, and 4 per layer, head dimension and pair."""
        tokens = 8192
        flops = 2 * 6.94e9 * tokens + 4 * 36 * 4096 * tokens * (tokens + 1) / 2
        seconds = roofline(overhead_us=0, compute_efficiency=1).seconds(step((0, tokens)))
        assert seconds == pytest.approx(flops / 989e12, rel=0.02)

    def test_batching_decodes_is_nearly_free_until_arithmetic_binds(self) -> None:
        model = roofline()
        one, many = model.seconds(decodes(1, 512)), model.seconds(decodes(64, 512))
        assert one < many < 2 * one

    def test_long_contexts_cost_bandwidth(self) -> None:
        model = roofline(overhead_us=0)
        extra = model.seconds(decodes(32, 4096)) - model.seconds(decodes(32, 1))
        kv = shape("qwen3-8b").kv_bytes_per_token * 32 * 4095
        assert extra == pytest.approx(kv / (0.8 * 3350e9), rel=0.01)

    def test_every_device_and_size_has_an_order(self) -> None:
        plan = step((500, 1), (0, 200), num_decodes=1)
        for device in DEVICES:
            seconds = [roofline(name, device=device).seconds(plan) for name in SHAPES]
            assert seconds == sorted(seconds)

    def test_figures_can_be_replaced(self) -> None:
        slow = roofline(bandwidth_gb_s=335, overhead_us=0).seconds(decodes(1, 1))
        assert slow > 9 * roofline(overhead_us=0).seconds(decodes(1, 1))

    def test_kv_is_what_the_weights_leave(self) -> None:
        """80 GB x 0.9 less 16.4 GB of weights: some 380,000 tokens of 147 kB."""
        tokens = roofline().kv_bytes() // shape("qwen3-8b").kv_bytes_per_token
        assert 350_000 < tokens < 390_000

    def test_a_model_that_does_not_fit_says_what_to_do(self) -> None:
        with pytest.raises(ExecutorError, match=r"no memory left.*rtx|choose another"):
            roofline("qwen3-32b", device="rtx-4090").kv_bytes()

    def test_an_unknown_device_lists_the_known(self) -> None:
        with pytest.raises(ValidationError, match="h100-sxm"):
            RooflineOptions(device="h101")


def test_an_unknown_shape_lists_the_known() -> None:
    with pytest.raises(ModelError, match=r"known: qwen3-0\.6b"):
        shape("qwen3-9b")


def test_parameter_counts_are_those_of_the_names() -> None:
    for name in SHAPES:
        spec = shape(name)
        embedding = 0 if spec.tie_word_embeddings else spec.num_head_parameters
        total = spec.num_layer_parameters + spec.num_head_parameters + embedding
        assert total / 1e9 == pytest.approx(float(name.split("-")[1][:-1]), rel=0.06)


def test_the_executor_takes_its_time_and_its_pool_from_the_cost_model() -> None:
    (plugin,) = (plugin for plugin in cost_model() if plugin.name == "roofline")
    component = Component(plugin=plugin, options=RooflineOptions())
    config = ExecutorConfig(
        spec=shape("qwen3-8b"), block_size=16, num_blocks=None, max_num_seqs=256,
        max_num_batched_tokens=8192, max_model_len=4096, clock=VirtualClock(),
        components=Components(cost_model=component),
    )  # fmt: skip
    sim = SimExecutor(SimOptions(), config)
    assert sim.capacity().num_blocks == roofline().kv_bytes() // (
        16 * config.spec.kv_bytes_per_token
    )
    plan = decodes(4, 100)
    sim.submit(plan)
    assert sim.collect().seconds == roofline().seconds(plan)
