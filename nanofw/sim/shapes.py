"""Model shapes without weights, so that a large model can be simulated without a download.

Numbers as in the published `config.json` of each checkpoint.
"""

from __future__ import annotations

from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError

_QWEN3 = {  # hidden, intermediate, layers, heads, tied
    "qwen3-0.6b": (1024, 3072, 28, 16, True),
    "qwen3-1.7b": (2048, 6144, 28, 16, True),
    "qwen3-4b": (2560, 9728, 36, 32, True),
    "qwen3-8b": (4096, 12288, 36, 32, False),
    "qwen3-14b": (5120, 17408, 40, 40, False),
    "qwen3-32b": (5120, 25600, 64, 64, False),
}
SHAPES = tuple(_QWEN3)
"""Names that `shape` knows."""


def shape(name: str, dtype: str = "bfloat16") -> ModelSpec:
    """The spec of a known model; ModelError lists the names when it is not known."""
    if name not in _QWEN3:
        raise ModelError(f"no model shape {name!r}; known: {', '.join(SHAPES)}")
    hidden, intermediate, layers, heads, tied = _QWEN3[name]
    return ModelSpec(
        architecture="Qwen3ForCausalLM",
        path=f"shape:{name}",
        dtype=dtype,
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        max_model_len=40960,
        eos_token_ids=(151645, 151643),
        tie_word_embeddings=tied,
        rope={"rope_type": "default", "rope_theta": 1e6},
    )
