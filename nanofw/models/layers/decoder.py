"""The decoder that Llama, Qwen2, Qwen3 and their relatives share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nanofw.checkpoints.weight_files import EMBEDDING, HEAD
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.model import Model, ModelConfig
from nanofw.errors import ModelError
from nanofw.models.layers.attention import Attention, ForwardInputs, forward_inputs
from nanofw.models.layers.embedding import ParallelHead, VocabParallelEmbedding
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import Targets, joined, load_tensors
from nanofw.models.layers.mlp import GatedMLP
from nanofw.models.layers.norm import RMSNorm
from nanofw.models.layers.rope import RotaryEmbedding

logger = logging.getLogger(__name__)

_ANNOUNCED_BIASES = {
    "attention_bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"),
    "mlp_bias": ("gate_proj.bias", "up_proj.bias", "down_proj.bias"),
}
"""Biases that a `config.json` may announce, in families that have them and in others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFeatures:
    """In what families differ.

    Attributes:
        qk_norm: queries and keys are normalised by head.
        qkv_bias, out_bias: the projections before and after the attention have biases.
        mlp_bias: those of the feed-forward part have.
    """

    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False


class DecoderLayer(Layer):
    """Attention and feed-forward part, each behind a norm and beside the residual stream."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        rope: RotaryEmbedding,
        features: DecoderFeatures,
    ) -> None:
        super().__init__()
        spec = config.spec
        kinds = {"dtype": config.dtype, "device": config.device}
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, **kinds)
        self.self_attn = Attention(
            config, layer, rope,
            qk_norm=features.qk_norm, qkv_bias=features.qkv_bias, out_bias=features.out_bias,
            is_partial=True,
        )  # fmt: skip
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, **kinds)
        self.mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, config,
            bias=features.mlp_bias, is_partial=True,
        )  # fmt: skip
        self._ranks = config.communicator

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: ForwardInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the feed-forward part's output, and the residual stream.

        Args:
            hidden: [t, hidden], such a part of the layer before; with no residual stream yet,
                the embedded tokens.
        """
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm.add_parts_and_norm(
                hidden, residual, self._ranks
            )
        hidden = self.self_attn(hidden, inputs)
        hidden, residual = self.post_attention_layernorm.add_parts_and_norm(
            hidden, residual, self._ranks
        )
        return self.mlp(hidden), residual

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(
            self.input_layernorm.targets(f"{prefix}input_layernorm.weight"),
            self.self_attn.targets(f"{prefix}self_attn."),
            self.post_attention_layernorm.targets(f"{prefix}post_attention_layernorm.weight"),
            self.mlp.targets(f"{prefix}mlp."),
        )


class PreNormDecoder(Layer, Model):
    """A whole model of the contract `model/2`: embedding, layers, norm, head.

    RMSNorm before each part, grouped queries, rotary positions, a SiLU-gated feed-forward part.
    A family is a subclass that says its `DecoderFeatures`. Empty until `load`.

    Raises:
        ModelError: the checkpoint asks for another activation or rope.
    """

    def __init__(self, config: ModelConfig, features: DecoderFeatures) -> None:
        super().__init__()
        spec = config.spec
        if spec.activation != "silu":
            raise ModelError(
                f"{spec.path}: hidden_act {spec.activation!r} is not supported by "
                f"{type(self).__name__}; supported: silu"
            )
        kinds = {"dtype": config.dtype, "device": config.device}
        ranks = config.communicator
        self._spec, self._config = spec, config
        self._ignored_biases: list[str] = []
        self._rope = RotaryEmbedding(spec, config.max_model_len, config.device)
        self.embed_tokens = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, communicator=ranks, **kinds
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, self._rope, features) for layer in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps, **kinds)
        self.lm_head = ParallelHead(
            spec.vocab_size, spec.hidden_size,
            tied=self.embed_tokens if spec.tie_word_embeddings else None,
            communicator=ranks, **kinds,
        )  # fmt: skip

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the checkpoint's tensors. See `nanofw.models.layers.load_tensors`."""
        targets = joined(
            self.embed_tokens.targets(EMBEDDING),
            *(layer.targets(f"model.layers.{i}.") for i, layer in enumerate(self._layers())),
            self.norm.targets("model.norm.weight"),
        )
        if self._spec.tie_word_embeddings:
            tensors = _under_one_name(tensors)
        else:
            targets |= self.lm_head.targets(HEAD)
        load_tensors(self, tensors, targets, ignored=self._is_needless)
        if self._ignored_biases and not self._config.communicator.rank:
            logger.warning(
                "%s: config.json announces biases that %s does not have, and the weights hold "
                "them: %d tensors such as %s are ignored",
                self._spec.path, type(self).__name__, len(self._ignored_biases),
                self._ignored_biases[0],
            )  # fmt: skip

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`, after the last norm."""
        inputs = forward_inputs(batch, pool, self._rope, self._config)
        hidden, residual = self.embed_tokens(batch.token_ids), None
        for layer in self._layers():
            hidden, residual = layer(hidden, residual, inputs)
        assert residual is not None
        wanted = batch.logits_indices
        ranks = self._config.communicator
        if not len(wanted) == batch.num_decodes == len(hidden):  # else all tokens, in order
            hidden, residual = hidden[wanted], residual[wanted]
        return self.norm.add_parts_and_norm(hidden, residual, ranks)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocabulary of this rank] of [s, hidden], padding of the range included."""
        return self.lm_head(hidden)

    def _layers(self) -> Iterable[DecoderLayer]:
        return self.layers  # pyright: ignore[reportReturnType]

    def _is_needless(self, name: str) -> bool:
        if name.endswith(".rotary_emb.inv_freq"):
            return True
        is_announced = any(
            self._spec.raw.get(key) is True and name.endswith(biases)
            for key, biases in _ANNOUNCED_BIASES.items()
        )
        if is_announced:
            self._ignored_biases.append(name)
        return is_announced


def _under_one_name(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Of a tied model, the matrix as the embedding's: files may have it under either name.

    Those that have it under both mean the embedding's.
    """
    head: torch.Tensor | None = None
    has_embedding = False
    for name, tensor in tensors:
        if name == HEAD:
            head = None if has_embedding else tensor
            continue
        if name == EMBEDDING:
            head, has_embedding = None, True
        yield name, tensor
    if head is not None:
        yield EMBEDDING, head
