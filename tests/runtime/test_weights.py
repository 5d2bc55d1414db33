"""Checkpoint files: what is read, what is refused, and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nanofw.checkpoints.weight_files import INDEX, SINGLE
from nanofw.errors import ModelError
from nanofw.runtime.weights import open_checkpoint


def write_sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Two shards and their index; the first shard also has a tensor that is not indexed."""
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    files = {"a": "one.safetensors", "b": "two.safetensors"}
    save_file({"a": tensors["a"], "unlisted": torch.ones(1)}, folder / "one.safetensors")
    save_file({"b": tensors["b"]}, folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    return tensors


def test_single_file(tmp_path: Path) -> None:
    save_file({"x": torch.arange(3)}, tmp_path / "model.safetensors")
    ((name, tensor),) = open_checkpoint(tmp_path).tensors()
    assert name == "x"
    assert tensor.tolist() == [0, 1, 2]


def test_B066_only_files_and_tensors_of_the_index_are_read(tmp_path: Path) -> None:
    tensors = write_sharded(tmp_path)
    save_file({"a": torch.full((2,), 9.0)}, tmp_path / "model-4bit.safetensors")
    found = dict(open_checkpoint(tmp_path).tensors())
    assert found.keys() == tensors.keys()
    assert torch.equal(found["a"], tensors["a"])


def test_a_whole_file_counts_before_an_index(tmp_path: Path) -> None:
    """As in transformers, whether the index is good or stale; the index is told of."""
    write_sharded(tmp_path)
    save_file({"c": torch.ones(1)}, tmp_path / SINGLE)
    checkpoint = open_checkpoint(tmp_path)
    assert [name for name, _ in checkpoint.tensors()] == ["c"]
    assert f"the {INDEX} beside it is not" in checkpoint.note


def test_B067_missing_shard_is_named_before_anything_is_read(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"two\.safetensors"):
        open_checkpoint(tmp_path)


def test_tensor_that_the_index_promises_in_vain(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    save_file({"other": torch.ones(1)}, tmp_path / "two.safetensors")
    with pytest.raises(ModelError, match=r"two\.safetensors lacks .* b"):
        list(open_checkpoint(tmp_path).tensors())


def test_damaged_file_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    content = (tmp_path / "two.safetensors").read_bytes()
    (tmp_path / "two.safetensors").write_bytes(content[:-4])
    with pytest.raises(ModelError, match=r"two\.safetensors cannot be read"):
        list(open_checkpoint(tmp_path).tensors())


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"weight_map": []}', "{}", '{"weight_map": {"a": 5}}']
)
def test_broken_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="is not an index"):
        open_checkpoint(tmp_path)


def test_folder_without_weights_says_what_it_has(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "adapter.safetensors")
    with pytest.raises(ModelError, match=r"adapter\.safetensors"):
        open_checkpoint(tmp_path)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        open_checkpoint(tmp_path / "nowhere")
