"""What is estimated before loading is what is there after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.checkpoints.config import read_checkpoint
from nanofw.contracts.model_spec import ModelSpec
from nanofw.runtime.estimate import estimate, weight_bytes
from nanofw.runtime.options import TorchOptions
from tests.runtime.checkpoints import write_model
from tests.runtime.driver import executor_config, make_executor


def true_weight_bytes(model: Any) -> int:
    return sum(parameter.numel() * 4 for parameter in model.parameters())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["5GB", "60KB"])
def test_weights_are_counted_from_the_headers(tmp_path: Path, tied: bool, shard: str) -> None:
    model = write_model(tmp_path, "Qwen2", tie_word_embeddings=tied, max_shard_size=shard)
    spec = read_checkpoint(tmp_path)
    assert weight_bytes(spec) == true_weight_bytes(model)
    assert weight_bytes(replace(spec, dtype="bfloat16")) == true_weight_bytes(model) // 2


def test_without_files_weights_are_counted_from_shapes(tmp_path: Path) -> None:
    model = write_model(tmp_path, "Llama")
    spec: ModelSpec = replace(read_checkpoint(tmp_path), path="somewhere")
    assert 0.95 < weight_bytes(spec) / true_weight_bytes(model) <= 1


def test_blocks_are_those_that_the_executor_takes(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    for num_blocks in (None, 40):
        executor = make_executor(tmp_path, num_blocks=num_blocks)
        found = estimate(None, executor_config(tmp_path, num_blocks=num_blocks))
        assert found["num_blocks"] == executor.capacity().num_blocks
        assert found["kv_bytes_per_block"] == executor._runner.backend.bytes_per_block()
        assert "problem" not in found


def test_ranks_share_weights_and_heads(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    one: Any = estimate(None, executor_config(tmp_path))
    two: Any = estimate(None, executor_config(tmp_path, ranks=2))
    four: Any = estimate(None, executor_config(tmp_path, ranks=4))
    assert two["weight_bytes"] == one["weight_bytes"] // 2
    assert two["kv_bytes_per_block"] == one["kv_bytes_per_block"] // 2
    assert four["kv_bytes_per_block"] == two["kv_bytes_per_block"]  # KV heads are repeated


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    found = estimate(None, executor_config(tmp_path, num_blocks=10**9))
    assert found["num_blocks"] == 10**9
    assert "of 1,000,000,000 blocks, as configured" in str(found["problem"])
    found = estimate(None, executor_config(tmp_path, num_blocks=None, max_num_seqs=10**12))
    assert "no memory is left for KV" in str(found["problem"])


def test_graphs_of_larger_steps_leave_less_room_for_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "Llama")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 << 30, 8 << 30))
    config = executor_config(
        tmp_path, device="cuda", num_blocks=None, max_num_batched_tokens=8192,
        cuda_graphs=True, prefill_graphs=True,
    )  # fmt: skip
    small: Any = estimate(TorchOptions(prefill_graph_tokens=512), config)
    large: Any = estimate(TorchOptions(prefill_graph_tokens=4096), config)
    assert 0 < small["graph_bytes"] < large["graph_bytes"]
    spare = (small["num_blocks"] - large["num_blocks"]) * small["kv_bytes_per_block"]
    more = large["graph_bytes"] - small["graph_bytes"]
    assert abs(spare - more) <= small["kv_bytes_per_block"]
    eager: Any = estimate(None, replace(config, cuda_graphs=False))
    assert "graph_bytes" not in eager
    assert eager["num_blocks"] > small["num_blocks"]
