"""Random tiny folders of every family: keys deleted, added and respelled, files in every
arrangement. A folder is a function of its family and seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.fuzz.dice import ABSENT, Dice
from tests.fuzz.family_keys import FAMILIES

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def make_config(family: str, seed: int) -> dict[str, Any]:
    """A `config.json` that describes a tiny decoder, or nearly one."""
    dice = Dice(family, seed)
    shape = _shape(family, dice)
    config = shape | _windows(shape["num_hidden_layers"], dice) | _extras(dice)
    name, own = f"{family}ForCausalLM", FAMILIES[family]
    config |= {
        "architectures": dice.rarely([name], ABSENT, [], ["OtherForCausalLM"], share=0.02),
        "model_type": dice.rarely(
            FAMILIES[family].model_type, ABSENT, "granite", "llama", share=0.03
        ),
        "initializer_range": 0.3,
        "tie_word_embeddings": dice.one(ABSENT, True, True, False),
        "attention_bias": dice.one(ABSENT, True, False),
        "mlp_bias": dice.one(ABSENT, True, False),
        "rms_norm_eps": dice.rarely(dice.one(ABSENT, 1e-5, 1e-6), 1, None, "1e-5"),
        "hidden_act": dice.rarely(dice.one(ABSENT, "silu", "swish"), "gelu", None, share=0.02),
        "eos_token_id": dice.one(ABSENT, None, 3, [3, 5], -1, 10**6),
        "bos_token_id": None,
        "pad_token_id": None,
    }
    config |= {"max_position_embeddings": dice.one(64, 128, 512, ABSENT), **_rope(dice)}
    config |= dice.one(
        {"dtype": "float32"}, {"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, {},
        {"dtype": "half"}, {"dtype": "float16", "torch_dtype": "int8"}, {"dtype": None},
    )  # fmt: skip
    config |= own.draw(Dice(family, seed, "-own"), config)
    items = [(key, value) for key, value in config.items() if value is not ABSENT]
    dice.shuffle(items)
    return dict(items)


def write_folder(folder: Path, family: str, seed: int) -> dict[str, Any] | None:
    """Write a folder; its `config.json`, or None where transformers makes no model of that."""
    config = make_config(family, seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = make_tensors(folder, seed)
    if tensors is None:
        return None
    dice = Dice(family, seed, "-files")
    _change_tensors(tensors, config, dice)
    _write_tensors(folder, tensors, dice)
    generation = dice.one(ABSENT, {}, {"eos_token_id": 4}, {"eos_token_id": [4, 6]},
                          {"eos_token_id": None, "temperature": 0.5})  # fmt: skip
    if generation is not ABSENT:
        text = json.dumps(generation)
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return config


def _shape(family: str, dice: Dice) -> dict[str, Any]:
    heads = dice.one(2, 4)
    config: dict[str, Any] = {
        "vocab_size": dice.one(61, 64, 97),
        "hidden_size": dice.one(16, 24, 32),
        "intermediate_size": dice.one(16, 40),
        "num_hidden_layers": dice.one(1, 2, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": dice.rarely(dice.one(1, 2, heads), None),
        "head_dim": dice.rarely(dice.one(8, 12, 16, ABSENT), None, None, 7, 0, "8"),
    }
    if dice.random() < 0.15:  # the family's own number of KV heads
        heads = FAMILIES[family].num_heads
        config |= {"num_attention_heads": heads, "num_key_value_heads": ABSENT, "hidden_size": 64}
    if dice.happens(0.12):
        key = dice.one("vocab_size", "intermediate_size", "num_hidden_layers")
        config[key] = dice.one(ABSENT, ABSENT, None, 0, 2.0)
    if dice.happens(0.08):
        config |= {
            "hidden_size": 40,
            "num_attention_heads": 3,
            "num_key_value_heads": dice.one(1, 3),
        }
    return config


def _windows(num_layers: Any, dice: Dice) -> dict[str, Any]:
    kinds = ("full_attention", "sliding_attention")
    count = num_layers if isinstance(num_layers, int) else 2
    named = [dice.choice(kinds) for _ in range(dice.rarely(count, count + 1, 0))]
    named = dice.rarely(named, ["attention"] * count, ["mamba"] * count)
    return {
        "sliding_window": dice.rarely(dice.one(ABSENT, None, 4, 8, 4096), 0, -1, "8", 8.0),
        "use_sliding_window": dice.rarely(dice.one(ABSENT, True, True, False), "false", None, 1),
        "max_window_layers": dice.rarely(dice.one(ABSENT, 0, 1, 2, 28), "a", None, -1, share=0.04),
        "layer_types": dice.one(ABSENT, ABSENT, None, named),
    }


def _extras(dice: Dice) -> dict[str, Any]:
    extras = {
        "embedding_multiplier": 12.0, "logits_scaling": 8.0, "use_qk_norm": True,
        "rope_interleaved": True, "no_rope_layers": [0, 1], "num_local_experts": 4,
        "pretraining_tp": 2, "use_cache": False, "attention_dropout": 0.5,
        "transformers_version": "4.30.0", "quantization_config": None, "hidden_activation": "gelu",
        "qkv_bias": True, "residual_multiplier": 0.2, "id2label": {"0": "a"},
    }  # fmt: skip
    return {key: extras[key] for key in dice.sample(sorted(extras), dice.one(0, 0, 1, 3))}


def _rope(dice: Dice) -> dict[str, Any]:
    """Keys of the rope, at every place where a file may have them."""
    theta = dice.rarely(dice.one(100.0, 10000.0, 500000), None, 0.5, "1e4", share=0.03)
    scaled = _rope_parameters(dice)
    if dice.random() < 0.4:
        scaled["rope_theta"] = dice.one(50.0, 777, theta)
    plain = {"rope_type": "default", "rope_theta": dice.one(500.0, 30.0)}
    found: dict[str, Any] = dice.one(
        {"rope_parameters": scaled},
        {"rope_scaling": scaled, "rope_parameters": plain},
        {"rope_scaling": scaled, "rope_parameters": None},
        {"rope_scaling": scaled},
        {"rope_scaling": dice.one(None, {}), "rope_parameters": scaled},
        {"rope_scaling": plain, "rope_parameters": scaled},
        {},
    )
    if dice.random() < 0.6:
        found["rope_theta"] = theta
    if dice.random() < 0.1:
        found["original_max_position_embeddings"] = dice.one(16, 32)
    if dice.happens(0.1):
        found["partial_rotary_factor"] = dice.one(1.0, 0.5)
    return found


def _rope_parameters(dice: Dice) -> dict[str, Any]:
    kind = dice.rarely(dice.one("default", "linear", "yarn", "llama3", "dynamic"),
                       "longrope", "su", None, "mrope", share=0.04)  # fmt: skip
    rope: dict[str, Any] = {dice.one("rope_type", "type"): kind}
    if dice.random() < 0.1:
        rope |= {"rope_type": kind, "type": dice.one("default", kind, "yarn")}
    if kind != "default":
        rope["factor"] = dice.rarely(dice.one(2.0, 4, 8.0), None, 0.5, "2", ABSENT)
    if kind == "llama3":
        low, high = dice.rarely((1.0, 4.0), (4.0, 1.0), (1, 2.5), (2.0, 2.0))
        rope |= {"low_freq_factor": low, "high_freq_factor": high}
    if kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = dice.one(16, 32, ABSENT)
    if kind == "yarn" and dice.random() < 0.5:
        odd = {"beta_fast": dice.one(16, 40.0, None), "beta_slow": dice.one(1, 2.0),
               "attention_factor": dice.one(1.3, None), "mscale": 0.7, "mscale_all_dim": 0.9,
               "truncate": dice.one(True, False)}  # fmt: skip
        rope |= {key: odd[key] for key in dice.sample(sorted(odd), 3)}
    if dice.random() < 0.05:
        rope["mrope_section"] = [1, 1, 2]
    return {key: value for key, value in rope.items() if value is not ABSENT}


def make_tensors(folder: Path, seed: int) -> dict[str, torch.Tensor] | None:
    """Random weights of the model that transformers makes of a `config.json`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except Exception:  # whatever it is, transformers refuses the file
        return None
    tensors = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            tensors[name] = tensor + 0.3 * torch.randn_like(tensor)
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def _change_tensors(tensors: dict[str, torch.Tensor], config: dict[str, Any], dice: Dice) -> None:
    """Heads of tied models, biases that a family does not have, needless tensors, other types."""
    if config.get("tie_word_embeddings") is True:
        kind = dice.one("one", "same", "other", "head")
        if kind == "one":
            tensors.pop(_HEAD, None)
        elif kind == "other":
            tensors[_HEAD] = torch.randn_like(tensors[_EMBEDDING])
        elif kind == "head":
            tensors[_HEAD] = tensors.pop(_EMBEDDING)
    if dice.random() < 0.1:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    if dice.happens(0.3):
        part = dice.one("self_attn.o_proj", "mlp.down_proj")
        size = len(tensors["model.norm.weight"])
        tensors.setdefault(f"model.layers.0.{part}.bias", torch.randn(size))
    stored = dice.one(torch.float32, torch.float32, torch.bfloat16, torch.float16)
    for name, tensor in tensors.items():
        tensors[name] = tensor.to(stored)


def _write_tensors(folder: Path, tensors: dict[str, torch.Tensor], dice: Dice) -> None:
    kind = dice.one("whole", "sharded", "stale", "old", "stray", "lost")
    names = sorted(tensors)
    dice.shuffle(names)
    places = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(names)}
    if kind in ("whole", "stale", "old"):
        save_file(tensors, folder / _SINGLE)
    if kind in ("sharded", "stray", "lost", "old"):
        shift = 1.0 if kind == "old" else 0.0  # numbers of another model
        for file in sorted(set(places.values())):
            part = {name: tensors[name] + shift for name in names if places[name] == file}
            save_file(part, folder / file)
    if kind == "stray":
        save_file({names[0]: tensors[names[0]] + 1}, folder / "model-4bit.safetensors")
    if kind == "lost" and dice.random() < 0.3:
        (folder / places[names[0]]).unlink()
    if kind != "whole":
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / _INDEX).write_text(json.dumps(index), encoding="utf-8")
