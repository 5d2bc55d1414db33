"""Folders that nanofw once read otherwise than transformers does, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanofw.assembly import assemble
from nanofw.assembly.model_source import read_spec
from nanofw.checkpoints.config import read_checkpoint
from nanofw.checkpoints.weight_files import EMBEDDING, HEAD, INDEX, SINGLE
from nanofw.config.load import load_config
from nanofw.errors import ConfigError, ModelError, PluginError
from nanofw.runtime.weights import open_checkpoint
from tests.checkpoints.both import check_equal, distance, load_theirs, logits_of, our_logits
from tests.runtime.checkpoints import write_model

DEMO = "embedded:demo"
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def rewrite(folder: Path, removed: tuple[str, ...] = (), **changes: Any) -> Path:
    """Change and remove keys of `config.json`."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    config = {key: value for key, value in config.items() if key not in removed}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def change(folder: Path, **tensors: torch.Tensor) -> Path:
    """Add and replace tensors; a name is written with `__` for its dots."""
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({**load_file(folder / SINGLE), **named}, folder / SINGLE)
    return folder


# -- ropes, windows, biases, defaults, ties: the meaning of keys ----------------------------------


@pytest.mark.parametrize(
    ("removed", "changes"),
    [
        ((), {"rope_scaling": YARN}),
        ((), {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 77.0}}),
        ((), {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 77.0}),
        (("rope_parameters",), {"rope_scaling": YARN, "rope_theta": 500}),
        ((), {"rope_scaling": {}, "rope_theta": 77.0}),
        ((), {"rope_scaling": {**YARN, "factor": None}}),
    ],
    ids=str,
)
def test_F031_rope_scaling_wins_over_rope_parameters(
    tmp_path: Path, removed: tuple[str, ...], changes: dict[str, Any]
) -> None:
    write_model(tmp_path, "Llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    check_equal(rewrite(tmp_path, removed, **changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_F032_a_head_that_differs_from_the_embedding_is_not_tied(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, family, tie_word_embeddings=True)
    change(tmp_path, lm_head__weight=torch.randn(128, 48))
    check_equal(tmp_path)
    assert "are both there and differ: they are not tied" in caplog.text


def test_F032_equal_tensors_and_a_lone_head_stay_tied(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama", tie_word_embeddings=True)
    tensors = load_file(tmp_path / SINGLE)
    change(tmp_path, lm_head__weight=tensors[EMBEDDING].clone())
    check_equal(tmp_path)
    tensors[HEAD] = tensors.pop(EMBEDDING)
    save_file(tensors, tmp_path / SINGLE)
    check_equal(tmp_path)


def test_F032_tied_tensors_may_be_in_two_files(tmp_path: Path) -> None:
    write_model(tmp_path, "Qwen2", tie_word_embeddings=True)
    tensors = load_file(tmp_path / SINGLE)
    (tmp_path / SINGLE).unlink()
    save_file(tensors, tmp_path / "one.safetensors")
    save_file({HEAD: torch.randn(128, 48)}, tmp_path / "two.safetensors")
    places = {**dict.fromkeys(tensors, "one.safetensors"), HEAD: "two.safetensors"}
    index = json.dumps({"metadata": {}, "weight_map": places})
    (tmp_path / INDEX).write_text(index, encoding="utf-8")
    check_equal(tmp_path)


@pytest.mark.parametrize("keys", [{}, {"use_sliding_window": True, "max_window_layers": 0}])
def test_F033_llama_has_no_window(
    tmp_path: Path, keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "Llama")
    check_equal(rewrite(tmp_path, sliding_window=8, **keys))
    read_spec(str(tmp_path))
    assert "LlamaForCausalLM does not know" in caplog.text
    assert "sliding_window: ignored" in caplog.text


@pytest.mark.parametrize("keys", [{"use_sliding_window": False}, {"max_window_layers": 3},
                                  {"layer_types": None}])  # fmt: skip
def test_F034_mistral_has_its_window_whatever_switch_there_is(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    write_model(tmp_path, "Mistral", sliding_window=8)
    check_equal(rewrite(tmp_path, **keys))


def test_F034_a_mistral_with_layer_types_is_a_ministral(tmp_path: Path) -> None:
    write_model(tmp_path, "Mistral", sliding_window=8)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    check_equal(rewrite(tmp_path, layer_types=kinds, use_sliding_window=False))
    assert read_checkpoint(tmp_path).sliding_windows == (8, None, None)


@pytest.mark.parametrize(
    ("family", "changes", "removed"),
    [
        ("Qwen3", {"head_dim": 128}, ("head_dim", "num_key_value_heads")),
        ("Mistral", {"num_key_value_heads": 8}, ("num_key_value_heads",)),
        ("Qwen2", {"num_key_value_heads": 32, "head_dim": 4}, ("num_key_value_heads",)),
        ("Llama", {"max_position_embeddings": 2048}, ("max_position_embeddings", "rms_norm_eps")),
        ("Qwen2", {"intermediate_size": 22016}, ("intermediate_size", "hidden_act")),
        ("Mistral", {"vocab_size": 32000, "intermediate_size": 14336},
         ("vocab_size", "intermediate_size", "tie_word_embeddings")),
        ("Llama", {"num_hidden_layers": 32, "num_key_value_heads": 32},
         ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")),
    ],
    ids=str,
)  # fmt: skip
def test_F035_every_family_has_its_own_defaults(
    tmp_path: Path, family: str, changes: dict[str, Any], removed: tuple[str, ...]
) -> None:
    heads = {"num_attention_heads": changes.get("num_key_value_heads", 4), "head_dim": 16}
    if "num_key_value_heads" in removed:
        heads["num_key_value_heads"] = heads["num_attention_heads"]
    if family == "Qwen3":  # the default of the KV heads needs as many query heads
        heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    shape = {"num_hidden_layers": 2, **heads, **changes}
    if "num_attention_heads" in removed:
        shape |= {"hidden_size": 64, "head_dim": 4}
    write_model(tmp_path, family, **shape)
    check_equal(rewrite(tmp_path, removed))


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
@pytest.mark.parametrize("family", ["Mistral", "Qwen2"])
def test_F036_biases_that_a_family_does_not_have(
    tmp_path: Path, family: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, family)
    changes: dict[str, Any] = {key: True}
    check_equal(rewrite(tmp_path, **changes))
    caplog.clear()
    part = "self_attn__o_proj" if key == "attention_bias" else "mlp__down_proj"
    change(tmp_path, **{f"model__layers__0__{part}__bias": torch.randn(48)})
    check_equal(tmp_path)
    assert "1 tensors such as model.layers.0" in caplog.text


# -- files ----------------------------------------------------------------------------------------


def test_F037_a_whole_file_beside_a_stale_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "Qwen3")
    places = {EMBEDDING: "model-00001-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    check_equal(tmp_path)
    assert f"{SINGLE} is read; the {INDEX} beside it is not" in caplog.text


def test_F037_old_shards_beside_a_whole_file_are_not_read(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    tensors = {name: tensor + 1 for name, tensor in load_file(tmp_path / SINGLE).items()}
    save_file(tensors, tmp_path / "old.safetensors")
    index = json.dumps({"weight_map": dict.fromkeys(tensors, "old.safetensors")})
    (tmp_path / INDEX).write_text(index, encoding="utf-8")
    check_equal(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The `config.json` of a small Llama."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, "Llama")
    return (folder / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 2**40),
        ("num_hidden_layers", 10**9),
        ("vocab_size", 10**15),
        ("hidden_size", 10**30),
        ("num_key_value_heads", 2**60),
        ("head_dim", 2**33),
        ("head_dim", 7),
        ("rms_norm_eps", 10**400),
        ("rms_norm_eps", float("inf")),
        ("num_hidden_layers", 2.0),
        ("hidden_act", {"name": "silu"}),
        ("dtype", {"a": "b" * 10_000}),
        ("dtype", 5),
        ("eos_token_id", "2"),
        ("eos_token_id", [2.5]),
        ("eos_token_id", True),
        ("rope_scaling", {"rope_type": "yarn", "factor": "x" * 10_000}),
        ("mlp_bias", "yes"),
        ("per_layer_config", {"0": {"head_dim": 8}}),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_F039_values_that_describe_no_model_name_file_and_key(
    tmp_path: Path, tiny: str, key: str, value: object
) -> None:
    config = json.loads(tiny) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spell = {"rope_scaling": "factor"}.get(key, key)
    with pytest.raises(ModelError) as error:
        read_checkpoint(tmp_path)
    text = str(error.value)
    assert str(tmp_path / "config.json") in text
    assert spell in text
    assert len(text) < 600
    assert "\n" not in text


def test_F039_a_wrong_switch_of_windows_names_its_key(tmp_path: Path, tiny: str) -> None:
    config = json.loads(tiny) | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    for key, value in (("max_window_layers", "a"), ("use_sliding_window", "no"),
                       ("layer_types", 5)):  # fmt: skip
        changed = config | {"use_sliding_window": True, key: value}
        (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ModelError, match=f"config.json: {key} should be"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", INDEX])
@pytest.mark.parametrize(
    "content",
    [
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"eos_token_id": ' + b"1" * 10_000 + b"}",
        b'{"eos_token_id": 1' + b" " * (65 << 20) + b"}",
        b'{"a": "\xff\xfe"}',
        b"[]",
        b"",
    ],
    ids=["deep", "nested", "digits", "large", "not_utf8", "list", "empty"],
)
def test_F039_files_of_json_are_read_within_bounds(
    tmp_path: Path, tiny: str, name: str, content: bytes
) -> None:
    (tmp_path / "config.json").write_text(tiny, encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    read = open_checkpoint if name == INDEX else read_checkpoint
    with pytest.raises(ModelError) as error:
        read(tmp_path)
    assert str(tmp_path / name) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_F039_a_pipe_is_not_waited_for(tmp_path: Path, tiny: str, name: str) -> None:
    (tmp_path / "config.json").write_text(tiny, encoding="utf-8")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match=f"{name} cannot be read: it is not a regular file"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "file",
    ["../outside/w.safetensors", "a/../../w.safetensors", "C:\\w", "..", "", "a\0b", 5, None],
)
def test_F039_an_index_names_files_of_its_folder_only(tmp_path: Path, file: object) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    save_file({"x": torch.ones(1)}, outside / "w.safetensors")
    save_file({"x": torch.ones(1)}, tmp_path / "w.safetensors")
    for name in (file, str(outside / "w.safetensors")):
        (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name}}), encoding="utf-8")
        with pytest.raises(ModelError, match="the file of 'x' is .* not the name of a file in"):
            open_checkpoint(folder)


def test_F039_an_absurd_header_of_safetensors_is_a_named_error(tmp_path: Path, tiny: str) -> None:
    (tmp_path / "config.json").write_text(tiny, encoding="utf-8")
    (tmp_path / SINGLE).write_bytes(b"\xff" * 64)
    config = load_config("qwen3-demo", [f"model.path={tmp_path}", "engine.device=cpu"])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read as safetensors"):
        assemble(config)


# -- families and formats that are not supported --------------------------------------------------

FOREIGN = {
    "Granite": ("granite", {"embedding_multiplier": 12.0, "logits_scaling": 8.0}),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
    "Ernie4_5": ("ernie4_5", {"use_bias": True}),
    "Helium": ("helium", {}),
}


@pytest.mark.parametrize("family", FOREIGN)
def test_F060_a_forced_name_does_not_read_another_family(
    tmp_path: Path, tiny: str, family: str
) -> None:
    model_type, keys = FOREIGN[family]
    config = json.loads(tiny) | {"architectures": [f"{family}ForCausalLM"],
                                 "model_type": model_type, **keys}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    overrides = [f"model.path={tmp_path}", "engine.device=cpu", "model.name=LlamaForCausalLM"]
    with pytest.raises(ModelError, match="LlamaForCausalLM cannot stand for") as error:
        assemble(load_config("qwen3-demo", overrides))
    assert all(name in str(error.value) for name in (model_type, f"{family}ForCausalLM", *keys))
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if keys:  # without a word on its type, the keys alone tell
        with pytest.raises(ModelError, match=f"does not know {next(iter(keys))}"):
            assemble(load_config("qwen3-demo", overrides))


def test_F060_a_forced_name_serves_another_spelling_of_the_family(tmp_path: Path) -> None:
    write_model(tmp_path, "Llama")
    expected = our_logits(tmp_path)
    rewrite(tmp_path, architectures=["MyLlamaForCausalLM"])
    spec = read_checkpoint(tmp_path, family="LlamaForCausalLM")
    assert (spec.architecture, spec.num_layers) == ("MyLlamaForCausalLM", 3)
    rewrite(tmp_path, architectures=["LlamaForCausalLM"])
    assert distance(our_logits(tmp_path), expected) == 0


def test_F060_a_file_that_says_two_families_is_refused(tmp_path: Path, tiny: str) -> None:
    config = json.loads(tiny) | {"model_type": "granite", "logits_scaling": 8.0}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="says 'granite', which is another family; .*logits_scal"):
        read_checkpoint(tmp_path)


def test_F060_keys_that_the_family_does_not_know_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "Llama")
    check_equal(rewrite(tmp_path, embedding_multiplier=12.0, use_qk_norm=True, use_cache=True))
    read_spec(str(tmp_path))
    assert "does not know embedding_multiplier, use_qk_norm: ignored" in caplog.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GemmaForCausalLM", ""),
        ("CohereForCausalLM", ""),
        ("GPTNeoXForCausalLM", ""),
        ("MixtralForCausalLM", ""),
        ("Qwen3MoeForCausalLM", ""),
        ("Qwen4ForCausalLM", ""),
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("LamaForCausalLM", "LlamaForCausalLM"),
        ("Qwen3ForCasualLM", "Qwen3ForCausalLM"),
    ],
)
def test_F060_only_misspelt_names_have_near_matches(
    tmp_path: Path, tiny: str, name: str, meant: str
) -> None:
    config = json.loads(tiny) | {"architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="is not supported") as error:
        assemble(load_config("qwen3-demo", [f"model.path={tmp_path}", "engine.device=cpu"]))
    assert ("did you mean" in str(error.value)) == bool(meant)
    assert f"did you mean '{meant}'" in str(error.value) or not meant
    if not meant:
        with pytest.raises((PluginError, ConfigError)) as other:
            assemble(load_config("qwen3-demo", [f"model.path={DEMO}", f"model.name={name}"]))
        assert "did you mean" not in str(other.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("model-q4_0.gguf",), "model-q4_0.gguf, a GGUF file .* convert it to safetensors"),
        (("adapter_config.json", "adapter_model.safetensors"), "a LoRA .* merge it into its base"),
        (("pytorch_model.bin",), "pickled weights of PyTorch"),
        (("params.json", "consolidated.00.pth"), "a publisher's own format"),
    ],
)
def test_F061_other_formats_are_named(
    tmp_path: Path, tiny: str, files: tuple[str, ...], message: str
) -> None:
    for file in files:
        (tmp_path / file).write_bytes(b"{}")
    with pytest.raises(ModelError, match=f"it has no config.json; it holds .*{message}"):
        read_spec(str(tmp_path))
    (tmp_path / "config.json").write_text(tiny, encoding="utf-8")
    with pytest.raises(ModelError, match=f"has neither {SINGLE} nor .*it holds .*{message}"):
        open_checkpoint(tmp_path)


def test_F061_a_path_to_a_file_is_named(tmp_path: Path) -> None:
    for name, message in (("m.gguf", "a GGUF file"), ("model.safetensors", "it is a file")):
        (tmp_path / name).write_bytes(b"GGUF")
        with pytest.raises(ModelError, match=f"is not a folder: .*{message}"):
            read_spec(str(tmp_path / name))
    with pytest.raises(ModelError, match="a GGUF file"):
        read_spec("absent/model.gguf")


@pytest.mark.parametrize(
    ("architecture", "model_type", "keys"),
    [
        ("Qwen3MoeForCausalLM", "qwen3_moe", {"num_experts": 128, "num_experts_per_tok": 8}),
        ("MixtralForCausalLM", "mixtral", {"num_local_experts": 8}),
        ("DeepseekV3ForCausalLM", "deepseek_v3", {"n_routed_experts": 64, "kv_lora_rank": 512}),
        ("GemmaForCausalLM", "gemma", {}),
    ],
)
def test_F072_what_is_not_modelled_is_not_simulated(
    tmp_path: Path, tiny: str, architecture: str, model_type: str, keys: dict[str, Any]
) -> None:
    config = json.loads(tiny) | {"architectures": [architecture], "model_type": model_type, **keys}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    overrides = [f"model.path={tmp_path}", "executor={name: sim}", "kv_allocator.num_blocks=64"]
    with pytest.raises(ModelError, match=f"architecture '{architecture}' is not"):
        assemble(load_config("qwen3-demo", overrides))


def test_F072_a_plugin_for_experts_makes_no_dense_simulation(tmp_path: Path, tiny: str) -> None:
    plugin = tmp_path / "experts.py"
    plugin.write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "@hookimpl\n"
        "def model():\n"
        "    return Plugin('Qwen3MoeForCausalLM', 'nanofw.models.qwen3:Qwen3ForCausalLM',\n"
        "        api='model/2')\n",
        encoding="utf-8",
    )
    config = json.loads(tiny) | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "x",
                                 "num_experts": 128}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    overrides = [f"model.path={tmp_path}", "executor={name: sim}", f"plugins.load=[{plugin}]"]
    with pytest.raises(ModelError, match=r"is not dense \(config.json has num_experts\)"):
        assemble(load_config("qwen3-demo", [*overrides, "kv_allocator.num_blocks=64"]))


def test_the_reference_is_not_ours(tmp_path: Path) -> None:
    """What the comparisons stand on: other weights are far apart."""
    write_model(tmp_path / "one", "Llama")
    write_model(tmp_path / "two", "Llama", rope_parameters={"rope_type": "default",
                                                            "rope_theta": 50.0})  # fmt: skip
    theirs = logits_of(load_theirs(tmp_path / "two"))
    assert distance(our_logits(tmp_path / "one"), theirs) > 0.01
