from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanofw.cli import environment
from nanofw.cli.main import main
from tests.spawn import run_python

BARE = """
import sys
for name in ("torch", "triton", "transformers", "flash_attn", "scipy", "safetensors"):
    sys.modules[name] = None
from nanofw.cli.main import main
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def by_name(items: Iterable[Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


def test_what_is_here_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    found = report(capsys)
    assert by_name(found["packages"])["torch"]["version"].startswith(
        torch.__version__.partition("+")[0]
    )
    assert found["devices"][0]["device"] == "cpu"
    backends = by_name(found["attention_backends"]["backends"])
    assert backends["sdpa"]["usable"]
    for item in (*backends.values(), *found["packages"]):
        assert item.get("usable", True) or item["reason"], item
        assert item.get("state", "ok") == "ok" or item["install"], item


def test_a_bare_machine_gets_install_lines() -> None:
    found = json.loads(run_python("-c", BARE, "--json"))
    torch = by_name(found["packages"])["torch"]
    assert torch["install"] == "pip install torch"
    assert torch["state"].startswith("cannot be imported: ModuleNotFoundError")
    assert "torch cannot be imported" in found["devices"][0]["problem"]
    assert not any(item["usable"] for item in found["attention_backends"]["backends"])
    assert "pip install torch" in run_python("-c", BARE)


def fake_torch(**cuda: Any) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(**cuda), version=SimpleNamespace(cuda=None, hip=None)
    )


def test_a_driver_without_a_torch_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "_nvidia_driver", lambda: "570.1")
    monkeypatch.setitem(sys.modules, "torch", fake_torch(is_available=lambda: False))
    problem = environment.devices()[1]["problem"]
    assert "NVIDIA driver (570.1), but this torch was built without CUDA" in problem


def test_gpus_are_listed_one_by_one_also_when_one_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def properties(index: int) -> Any:
        if index:
            raise RuntimeError("device-side assert triggered")
        return SimpleNamespace(name="A card", major=9, minor=0)

    torch = fake_torch(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_properties=properties,
        mem_get_info=lambda index: (1 << 30, 2 << 30),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    _, first, second = environment.devices()
    assert (first["name"], first["capability"], first["free_bytes"]) == ("A card", "9.0", 1 << 30)
    assert second == {"device": "cuda:1", "problem": "RuntimeError: device-side assert triggered"}


def test_a_broken_build_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> Any:
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(environment.importlib, "import_module", fail)
    torch = by_name(environment.packages())["torch"]
    assert torch["state"] == (
        "cannot be imported: OSError: libcudart.so.12: cannot open shared object file"
    )
    assert "libcudart" in environment.devices()[0]["problem"]


def test_a_model_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "embedded:demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"]
    assert found["facts"]["architecture"] == "Qwen3ForCausalLM"
    assert found["facts"]["run by"] == "model Qwen3ForCausalLM (Qwen3, dense)"
    keys = found["facts"]["keys that count"].split(", ")
    assert {"hidden_size", "rms_norm_eps", "tie_word_embeddings"} < set(keys)
    assert not {"architectures", "initializer_range", "use_cache"} & set(keys)
    assert main(["doctor", "embedded:demo"]) == 0
    assert "KV of a token" in capsys.readouterr().out


def test_a_model_that_cannot_run_has_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "model.name=transformers" in found["reason"]
    assert "num_attention_heads should be a positive integer" in found["through_transformers"]
