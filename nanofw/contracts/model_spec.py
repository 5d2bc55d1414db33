"""What the torch-free parts know of a model: shape, vocabulary, lengths, end tokens, size.

A reader of a family that is a plain dense decoder states its shape, and all sizes follow from it:

    def read(config_json, folder):
        return ModelSpec(
            architecture="MyForCausalLM", path=str(folder), dtype="bfloat16", vocab_size=32000,
            hidden_size=config_json["width"], intermediate_size=4 * config_json["width"],
            num_layers=config_json["depth"], num_heads=16, num_kv_heads=16, head_dim=64,
            max_model_len=4096, eos_token_ids=(2,))

Any other family states its sizes too, so that nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nanofw.errors import ModelError

BYTES_PER_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}
_SAME_ACTIVATIONS = {
    "swish": "silu",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder's description, read from `config.json` without loading weights.

    Fields that a reader leaves at None have the values of a dense decoder of this shape.

    Attributes:
        architecture: the checkpoint's class name, for example `Qwen3ForCausalLM`.
        path: folder of the checkpoint; if there is no checkpoint, a name.
        dtype: element type of weights and KV: float32, bfloat16 or float16.
        max_model_len: positions that the model supports.
        eos_token_ids: tokens that end a request unless it says `ignore_eos`.
        rope: `rope_type`, `rope_theta` and the parameters of that type; empty: the model reads its
            own.
        layer_ropes: by layer the parameters of its rope, None for a layer without rotation; empty:
            every layer has `rope`.
        sliding_windows: per layer the window in tokens, or None for full attention.
        soft_cap: bound of the attention's scores, see `AttentionConfig`; None: no bound.
        random_weights: no weights are read; random numbers take their place.
        num_token_ids: number of ids of the model's tokenizer. Higher ids are padding and are never
            sampled. None: no padding is known.
        attention_bias: whether the projections of the attention have biases.
        mlp_bias: whether the matrices of the feed-forward part have biases.
        num_mlp_matrices: number of matrices of the feed-forward part: 3 with a gate, 2 without.
        layer_parameters: number of weights between embedding and head that are held in memory,
            including all experts.
        active_parameters: how many of these weights are used for one token.
        layer_bytes: bytes that these weights take in memory, if `dtype` does not determine it:
            quantized weights.
        kv_elements: elements of keys and values that one token keeps over all layers.
        family_values: keys that only this family knows, with its defaults.
        raw: the parsed `config.json`.
        notes: sentences about what the reader assumed or ignored.
    """

    architecture: str
    path: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    num_mlp_matrices: int = 3
    rope: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    layer_ropes: tuple[Mapping[str, Any] | None, ...] = ()
    sliding_windows: tuple[int | None, ...] = ()
    soft_cap: float | None = None
    random_weights: bool = False
    num_token_ids: int | None = None
    layer_parameters: int | None = None
    active_parameters: int | None = None
    layer_bytes: int | None = None
    kv_elements: int | None = None
    family_values: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    notes: tuple[str, ...] = ()

    @property
    def num_sampled_ids(self) -> int:
        """Ids that may be sampled: the vocabulary without its padding."""
        known = self.num_token_ids
        return self.vocab_size if known is None else min(self.vocab_size, known)

    @property
    def activation(self) -> str:
        """The activation of the feed-forward part. If it has several names, one of them is used."""
        name = str(self.raw.get("hidden_act") or self.raw.get("hidden_activation") or "silu")
        return _SAME_ACTIVATIONS.get(name, name)

    @property
    def rotates_partly(self) -> bool:
        """Whether only a part of each head is rotated."""
        return self.rope.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0)

    @property
    def trained_len(self) -> int:
        """Number of positions in training, before the rope was scaled."""
        return int(self.rope.get("original_max_position_embeddings") or self.max_model_len)

    @property
    def default_model_len(self) -> int:
        """Number of positions of a run that does not set `max_model_len`.

        If the rope depends on the length of the run, this is the trained length: a longer run
        changes the angle of every position.
        """
        is_dynamic = self.rope.get("rope_type") in ("dynamic", "longrope")
        return min(self.trained_len, self.max_model_len) if is_dynamic else self.max_model_len

    @property
    def bytes_per_element(self) -> int:
        return BYTES_PER_ELEMENT[self.dtype]

    @property
    def states_its_size(self) -> bool:
        """Whether the reader states the sizes on which the cost of a step depends."""
        return self.layer_parameters is not None and self.active_parameters is not None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps over all layers."""
        elements = self.kv_elements
        if elements is None:
            elements = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return elements * self.bytes_per_element

    @property
    def num_layer_parameters(self) -> int:
        """Weights of all linear layers between embedding and head (norms left out)."""
        if self.layer_parameters is not None:
            return self.layer_parameters
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = self.num_mlp_matrices * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp)

    @property
    def num_active_parameters(self) -> int:
        """How many of these weights are used for one token."""
        known = self.active_parameters
        return self.num_layer_parameters if known is None else known

    @property
    def num_head_parameters(self) -> int:
        """Weights of the output head."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices, embedding and head included."""
        heads = 1 if self.tie_word_embeddings else 2
        return self.num_layer_parameters + heads * self.num_head_parameters

    @property
    def layer_weight_bytes(self) -> int:
        """Bytes of the weights between embedding and head."""
        known = self.layer_bytes
        return self.num_layer_parameters * self.bytes_per_element if known is None else known

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices."""
        others = self.num_parameters - self.num_layer_parameters
        return self.layer_weight_bytes + others * self.bytes_per_element


def rotated_size(rope: Mapping[str, Any], head_dim: int) -> int:
    """Elements of a head that a rope turns."""
    factor = rope.get("partial_rotary_factor")
    return head_dim if factor is None else int(head_dim * float(factor))


def vocabulary_of_rank(vocab_size: int, rank: int, num_ranks: int) -> range:
    """The tokens of a rank. All ranges are equally wide, but the last may be shorter or empty."""
    width = -(-vocab_size // num_ranks)
    start = min(vocab_size, rank * width)
    return range(start, min(vocab_size, start + width))


def tensor_parallel_sizes(spec: ModelSpec) -> list[int]:
    """Numbers of ranks that can share the model's layers evenly. The vocabulary is padded."""
    return [
        size
        for size in range(1, spec.num_heads + 1)
        if spec.num_heads % size == 0
        and (spec.num_kv_heads % size == 0 or size % spec.num_kv_heads == 0)
        and spec.intermediate_size % size == 0
    ]


def heads_of_rank(num_heads: int, num_kv_heads: int, num_ranks: int) -> tuple[int, int]:
    """Query and KV heads of each rank; KV heads are repeated when there are fewer than ranks.

    Raises:
        ModelError: the ranks cannot share them evenly.
    """
    fits_kv = num_kv_heads % num_ranks == 0 or num_ranks % num_kv_heads == 0
    if num_heads % num_ranks or not fits_kv:
        raise ModelError(
            f"{num_heads} query and {num_kv_heads} KV heads cannot be shared by {num_ranks} "
            "ranks: choose an engine.tensor_parallel_size that divides both, or that divides "
            "the query heads and is a multiple of the KV heads"
        )
    return num_heads // num_ranks, max(1, num_kv_heads // num_ranks)
