"""What the families refuse, and that the engine finds them by their architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanofw.assembly import select
from nanofw.config.load import load_config
from nanofw.errors import CapabilityError, ModelError
from tests.runtime.checkpoints import write_model
from tests.runtime.driver import make_executor


def rewrite(folder: Path, **changes: Any) -> Path:
    """Change keys of a checkpoint's `config.json`."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return folder


def choose(folder: Path, *overrides: str) -> Any:
    return select(load_config("qwen3-demo", [f"model.path={folder}", *overrides]))


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_checkpoint_finds_its_model(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    assert choose(tmp_path).components["model"].name == f"{family}ForCausalLM"


def test_another_activation_is_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    rewrite(tmp_path, hidden_act="gelu")
    with pytest.raises(CapabilityError, match="activation gelu is needed, it claims silu"):
        choose(tmp_path)
    with pytest.raises(ModelError, match="hidden_act 'gelu' is not supported by LlamaForCausalLM"):
        make_executor(tmp_path)


def test_partial_rotation_is_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    rewrite(tmp_path, partial_rotary_factor=0.5)
    with pytest.raises(CapabilityError, match="it does not claim partial_rotary"):
        choose(tmp_path)


def test_B063_biases_that_the_configuration_denies_are_listed(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama", attention_bias=True)
    rewrite(tmp_path, attention_bias=False)
    with pytest.raises(ModelError, match=r"12 tensors unexpected: .*self_attn.*bias"):
        make_executor(tmp_path)


def test_B064_codes_of_quantized_weights_are_refused(tmp_path: Path) -> None:
    """Also where config.json forgets to say that they are."""
    write_model(tmp_path, "Llama")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)
    save_file(tensors, path)
    with pytest.raises(ModelError, match=f"{name} is torch.int8: quantized weights are not"):
        make_executor(tmp_path)


def test_a_backend_without_windows_is_passed_over(tmp_path: Path) -> None:
    """And one that was named is refused; a window that is not in use asks nothing."""
    plugin = tmp_path / "windowless.py"
    plugin.write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "@hookimpl\n"
        "def attention_backend():\n"
        "    return Plugin('triton', 'nanofw.attention_backends.sdpa:SdpaBackend',\n"
        "        api='attention_backend/2', capabilities={'devices': ('*',), 'dtypes': ('*',),\n"
        "        'head_dims': ('*',), 'block_sizes': ('*',), 'sliding_window': False})\n",
        encoding="utf-8",
    )
    own = [
        f"plugins.load=[{plugin}]",
        "plugins.override={attention_backend.triton: windowless}",
        "plugins.disable=[attention_backend.flash_attn]",
    ]
    folder = tmp_path / "model"
    changes: dict[str, Any] = {"sliding_window": 8, "max_window_layers": 0}
    write_model(folder, "Qwen2", use_sliding_window=True, **changes)
    backend = choose(folder, *own).explanation.choice("attention_backend")
    assert backend.name == "sdpa"
    assert dict(backend.passed_over)["triton"] == "it does not claim sliding_window"
    with pytest.raises(CapabilityError, match="does not claim sliding_window"):
        choose(folder, *own, "attention_backend.name=triton")
    rewrite(folder, use_sliding_window=False)
    assert choose(folder, *own).components["attention_backend"].name == "triton"
