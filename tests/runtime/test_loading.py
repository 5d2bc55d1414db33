"""Checkpoints that do not fit are refused with one error that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanofw.checkpoints.weight_files import INDEX, SINGLE
from nanofw.errors import ModelError
from nanofw.plugins import Component
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import Driver, make_executor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_qwen3(tmp_path, num_hidden_layers=1)
    return tmp_path


def change(folder: Path, edit: Any) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE)


def test_missing_and_unexpected_tensors_are_listed_together(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.0.mlp.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.experts.weight"] = torch.zeros(1)

    change(folder, edit)
    with pytest.raises(ModelError) as error:
        make_executor(folder)
    for name in ("mlp.up_proj.weight", "model.norm.weight", "mlp.experts.weight"):
        assert name in str(error.value)


def test_B063_biases_that_config_json_does_not_announce(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name, size in (("q", 64), ("k", 32), ("v", 32)):
            tensors[f"model.layers.0.self_attn.{name}_proj.bias"] = torch.zeros(size)

    change(folder, edit)
    with pytest.raises(ModelError, match=r"3 tensors unexpected: .*q_proj\.bias"):
        make_executor(folder)


def test_layer_past_the_configured_ones(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = 2
    del config["layer_types"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r"11 tensors missing: model\.layers\.1\."):
        make_executor(folder)


def test_wrong_shape_names_both_shapes(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.zeros(7)

    change(folder, edit)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[7\] where \[48\]"):
        make_executor(folder)


def test_B067_missing_shard_stops_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_qwen3(tmp_path, max_shard_size="60KB")
    files = sorted(set(json.loads((tmp_path / INDEX).read_text("utf-8"))["weight_map"].values()))
    (tmp_path / files[-1]).unlink()
    built: list[str] = []
    monkeypatch.setattr(Component, "load", lambda self: built.append(self.kind))
    with pytest.raises(ModelError, match=files[-1].replace(".", r"\.")):
        make_executor(tmp_path)
    assert built == []


def test_tied_checkpoint_may_carry_a_head(tmp_path: Path) -> None:
    """Some tools write the shared tensor twice."""
    write_qwen3(tmp_path, tie_word_embeddings=True)
    driver = Driver(make_executor(tmp_path))
    row = driver.add(0, [1, 2, 3])
    driver.prefill(row)

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change(tmp_path, edit)
    again = Driver(make_executor(tmp_path))
    same = again.add(0, [1, 2, 3])
    again.prefill(same)
    assert same.outputs == row.outputs


def test_checkpoint_of_another_dtype_is_converted(tmp_path: Path) -> None:
    write_qwen3(tmp_path)

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(torch.bfloat16)

    change(tmp_path, edit)
    executor = make_executor(tmp_path, dtype="float32")
    model: Any = executor._runner.model
    assert model.embed_tokens.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_shared_tensor_may_stand_under_either_name(tmp_path: Path, name: str) -> None:
    """`safetensors.torch.save_model` keeps one of the names: the first by the alphabet."""
    write_qwen3(tmp_path, tie_word_embeddings=True)

    def outputs() -> list[int]:
        driver = Driver(make_executor(tmp_path))
        row = driver.add(0, [1, 2, 3])
        driver.prefill(row)
        return row.outputs

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors.pop("model.embed_tokens.weight")

    expected = outputs()
    change(tmp_path, edit)
    assert outputs() == expected


def test_weights_beyond_float16_are_named(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = -1e5

    change(folder, edit)
    with pytest.raises(
        ModelError, match=r"down_proj\.weight has numbers up to 1e\+05, beyond float16"
    ):
        make_executor(folder, dtype="float16")
    make_executor(folder, dtype="bfloat16")
