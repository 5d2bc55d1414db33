"""The decoder that the families share: Llama, Qwen, Gemma, Phi and their relatives."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from nanofw.checkpoints.weight_files import EMBEDDING, HEAD
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.model import Model, ModelConfig
from nanofw.errors import ModelError
from nanofw.models.layers.attention import forward_inputs
from nanofw.models.layers.decoder_layers import DecoderLayer, layer_class, make_norm
from nanofw.models.layers.embedding import ParallelHead, VocabParallelEmbedding
from nanofw.models.layers.features import DecoderFeatures
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import fill_random, joined, load_tensors
from nanofw.models.layers.norm import Norm
from nanofw.models.layers.rope import distinct, layer_ropes

logger: logging.Logger = logging.getLogger(__name__)

_ANNOUNCED_BIASES = {
    "attention_bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"),
    "mlp_bias": ("gate_proj.bias", "up_proj.bias", "down_proj.bias"),
}
"""Biases that a `config.json` may announce, in families that have them and in others."""


class Decoder(Layer, Model):
    """A whole model of the contract `model/2`: embedding, layers, norm, head.

    Grouped queries, rotary positions, a feed-forward part, norms. A family is a subclass that says
    its `DecoderFeatures`. Empty until `load`.

    Raises:
        ModelError: the checkpoint asks for another activation or rope.
    """

    def __init__(self, config: ModelConfig, features: DecoderFeatures) -> None:
        super().__init__()
        spec = config.spec
        if spec.activation not in features.activations:
            raise ModelError(
                f"{spec.path}: hidden_act {spec.activation!r} is not supported by "
                f"{type(self).__name__}; supported: {', '.join(features.activations)}"
            )
        kinds = {"dtype": config.dtype, "device": config.device}
        ranks = config.communicator
        self._spec, self._config, self._features = spec, config, features
        self._ignored_biases: list[str] = []
        ropes = layer_ropes(
            spec, config.max_model_len, config.device, is_partial=features.partial_rotation
        )
        self._ropes = distinct(ropes)
        self.embed_tokens: VocabParallelEmbedding = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, communicator=ranks, **kinds
        )
        make_layer = layer_class(features)
        self.layers: nn.ModuleList = nn.ModuleList(
            make_layer(config, layer, rope, features) for layer, rope in enumerate(ropes)
        )
        self.norm: Norm = make_norm(config, features)
        self._add_and_norm = self.norm.add_and_norm
        if make_layer.gives_parts:
            self._add_and_norm = partial(self.norm.add_parts_and_norm, communicator=ranks)
        # In the model's type, as families multiply it.
        self._embedding_scale = float(torch.tensor(features.embedding_scale, dtype=config.dtype))
        self.lm_head: ParallelHead = ParallelHead(
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

    def load_random(self) -> None:
        """Fill every parameter with random numbers on its device."""
        fill_random(self)

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`, after the last norm."""
        inputs = forward_inputs(batch, pool, self._ropes, self._config)
        hidden, residual = self.embed_tokens(batch.token_ids), None
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        for layer in self._layers():
            hidden, residual = layer(hidden, residual, inputs)
        assert residual is not None
        wanted = batch.logits_indices
        if not len(wanted) == batch.num_decodes == len(hidden):  # else all tokens, in order
            hidden, residual = hidden[wanted], residual[wanted]
        return self._add_and_norm(hidden, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocabulary of this rank] of [s, hidden], padding of the range included."""
        scale, cap = self._features.logits_scale, self._features.logits_cap
        if scale == 1.0 and cap is None:
            return self.lm_head(hidden)
        logits = self.lm_head(hidden).mul_(scale)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

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
