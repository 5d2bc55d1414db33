"""Plugins in local files, and configurations of simulated runs that use them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import Selection, select
from nanofw.config.load import LoadedConfig, load_config

SIMULATED: dict[str, Any] = {
    "model": {"path": "shape:qwen3-0.6b"},
    "executor": {"name": "sim"},
    "kv_allocator": {"num_blocks": 64},
}


@pytest.fixture
def local(tmp_path: Path) -> Callable[[str], Path]:
    """`local(source)` writes a plugin file; `hookimpl`, `Plugin` and contracts are imported."""
    count = 0

    def write(source: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"local_{count}.py"
        path.write_text("from nanofw.plugins import *\n" + textwrap.dedent(source), "utf-8")
        return path

    return write


@pytest.fixture
def load() -> Callable[..., LoadedConfig]:
    """`load("key=value", plugins=[path])`: the configuration of a simulated run."""

    def make(*overrides: str, plugins: list[Path] | None = None, **values: Any) -> LoadedConfig:
        load_list = {"plugins": {"load": [str(path) for path in plugins or []]}}
        return load_config(None, overrides, values={**SIMULATED, **load_list, **values})

    return make


@pytest.fixture
def choose(load: Callable[..., LoadedConfig]) -> Callable[..., Selection]:
    """`load`, then `select`."""

    def make(*overrides: str, **fields: Any) -> Selection:
        return select(load(*overrides, **fields))

    return make


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    """A checkpoint folder with a configuration, as the `model` section."""
    config = {
        "architectures": ["TinyForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "torch_dtype": "bfloat16",
    }
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"path": str(folder)}
