"""What a step must read and compute, against sums over its tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nanofw.bench.least_work import of_decode, of_prefill
from nanofw.contracts.model_spec import ModelSpec

SPEC = ModelSpec(
    architecture="any", path="", dtype="bfloat16", vocab_size=1000, hidden_size=64,
    intermediate_size=128, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, max_model_len=64,
)  # fmt: skip
WINDOWS = replace(SPEC, sliding_windows=(5, None, 5))


@pytest.mark.parametrize("spec", [SPEC, WINDOWS], ids=["full", "windows"])
@pytest.mark.parametrize("num_tokens", [1, 4, 5, 6, 30])
def test_a_prompt_costs_what_its_tokens_cost_one_by_one(spec: ModelSpec, num_tokens: int) -> None:
    """But for weights, which are read once, and heads, of which one is computed."""
    steps = [of_decode(spec, 1, context) for context in range(1, num_tokens + 1)]
    heads = 2 * spec.num_head_parameters * (num_tokens - 1)
    whole = of_prefill(spec, num_tokens)
    assert whole.flops == sum(step.flops for step in steps) - heads
    assert whole.weight_bytes == steps[0].weight_bytes
    assert whole.kv_bytes == num_tokens * spec.kv_bytes_per_token


def test_windows_bound_what_rows_read() -> None:
    full, bounded = (of_decode(spec, 7, 40) for spec in (SPEC, WINDOWS))
    assert full.kv_bytes == 7 * 40 * SPEC.kv_bytes_per_token
    assert bounded.kv_bytes == full.kv_bytes * (5 + 40 + 5) / (3 * 40)


def test_few_tokens_read_some_of_the_experts() -> None:
    parameters = SPEC.num_layer_parameters
    spec = replace(SPEC, layer_parameters=parameters, active_parameters=parameters // 4)
    head = 2 * SPEC.num_head_parameters
    shares = [
        (of_decode(spec, n, 9).weight_bytes - head) / SPEC.layer_weight_bytes for n in (1, 2, 99)
    ]
    assert shares == pytest.approx([1 / 4, 7 / 16, 1])
