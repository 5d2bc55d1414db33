"""Write `model.gguf` in float32 beside the safetensors of a Qwen3 or Llama checkpoint.

    pip install gguf safetensors
    python benchmarks/cpu_peers/write_gguf.py FOLDER

The file has no tokenizer: the benchmark gives token ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf  # pyright: ignore[reportMissingImports]
import numpy as np
from safetensors.numpy import load_file

OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write(folder: Path) -> None:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    architecture = config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(0)  # all in float32
    for name, weight in weights.items():
        weight = weight.astype(np.float32)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            weight = _interleaved(weight, heads if "q_proj" in name else kv_heads)
        writer.add_tensor(_renamed(name), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str) -> str:
    if name in OUTER:
        return OUTER[name]
    _, _, layer, *inner, kind = name.split(".")
    return f"blk.{layer}.{INNER['.'.join(inner)]}.{kind}"


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Outputs of each head in the order in which llama.cpp rotates those of Llama: in pairs."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
