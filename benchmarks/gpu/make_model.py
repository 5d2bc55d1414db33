"""Checkpoints in the shapes of Qwen3 with random weights, and a tokenizer of made-up words.

python benchmarks/gpu/make_model.py FOLDER 0.6b [8b 32b small]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 151936
END = 151645
SHARD_BYTES = 4e9
SHAPES = {
    "small": {"hidden": 1024, "layers": 4, "heads": 16, "inner": 3072, "tied": True},
    "0.6b": {"hidden": 1024, "layers": 28, "heads": 16, "inner": 3072, "tied": True},
    "8b": {"hidden": 4096, "layers": 36, "heads": 32, "inner": 12288, "tied": False},
    "32b": {"hidden": 5120, "layers": 64, "heads": 64, "inner": 25600, "tied": False},
}


def config(shape: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "eos_token_id": END,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["inner"],
        "max_position_embeddings": 40960,
        "num_attention_heads": shape["heads"],
        "num_hidden_layers": shape["layers"],
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "tie_word_embeddings": shape["tied"],
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }


def tensors(shape: dict[str, int]):
    """Names and sizes of all weights; one dimension: a norm."""
    hidden, inner, heads = shape["hidden"], shape["inner"], shape["heads"]
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for i in range(shape["layers"]):
        layer = f"model.layers.{i}."
        yield layer + "self_attn.q_proj.weight", (heads * 128, hidden)
        yield layer + "self_attn.k_proj.weight", (1024, hidden)
        yield layer + "self_attn.v_proj.weight", (1024, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, heads * 128)
        yield layer + "self_attn.q_norm.weight", (128,)
        yield layer + "self_attn.k_norm.weight", (128,)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape["tied"]:
        yield "lm_head.weight", (VOCABULARY, hidden)


def write_weights(folder: Path, shape: dict[str, int]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(1)
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, dims in tensors(shape):
        weight = torch.ones(dims, dtype=torch.bfloat16)
        if len(dims) == 2:
            kind = {"device": device, "dtype": torch.bfloat16, "generator": generator}
            weight = (torch.randn(dims, **kind) * 0.02).cpu()
        if size + weight.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = weight
        size += weight.nbytes
    index = {}
    for number, shard in enumerate(shards):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}), encoding="utf-8"
    )


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"t{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": f"t{END}",
        "unk_token": "t0",
        "model_max_length": 131072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")


def make(root: Path, name: str) -> Path:
    """The folder of a checkpoint; written unless it is there."""
    folder = root / name
    if not (folder / "model.safetensors.index.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config(SHAPES[name])), encoding="utf-8")
        write_tokenizer(folder)
        write_weights(folder, SHAPES[name])
        print("made", folder, flush=True)
    return folder


def main() -> None:
    root, *names = sys.argv[1:]
    for name in names:
        make(Path(root), name)


if __name__ == "__main__":
    main()
