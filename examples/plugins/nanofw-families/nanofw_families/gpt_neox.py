"""GPT-NeoX and Pythia: attention and feed-forward part side by side, each behind its own norm.

Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model". A whole model of the
layers that nanofw has; only the layer and the names in the checkpoint are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from nanofw.models.layers import (
    Attention,
    DecoderFeatures,
    ForwardInputs,
    Layer,
    ParallelHead,
    PlainMLP,
    RotaryEmbedding,
    Targets,
    VocabParallelEmbedding,
    fill_random,
    forward_inputs,
    joined,
    layer_ropes,
    load_tensors,
    make_norm,
)
from nanofw.plugins import ForwardBatch, Model, ModelConfig

FUSED = ".attention.query_key_value."
COMPUTED = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
"""Tensors of old checkpoints that follow from the rest."""


class GPTNeoXLayer(Layer):
    def __init__(
        self, config: ModelConfig, index: int, rope: RotaryEmbedding, features: DecoderFeatures
    ) -> None:
        super().__init__()
        spec = config.spec
        self.input_layernorm = make_norm(config, features)
        self.post_attention_layernorm = make_norm(config, features)
        self.attention = Attention(config, index, rope, features, is_partial=True)
        self.mlp = PlainMLP(
            spec.hidden_size, spec.intermediate_size, config,
            names=("dense_h_to_4h", "dense_4h_to_h"), activation=spec.activation, bias=True,
            is_partial=True,
        )  # fmt: skip
        self._is_parallel = spec.raw.get("use_parallel_residual", True)
        self._ranks = config.communicator

    def forward(self, stream: torch.Tensor, inputs: ForwardInputs) -> torch.Tensor:
        """The residual stream [t, hidden] before the layer, to that after it."""
        attended = self.attention(self.input_layernorm(stream), inputs)
        if self._is_parallel:  # one sum over ranks for both parts
            beside = self.mlp(self.post_attention_layernorm(stream))
            return stream + self._ranks.all_reduce(attended + beside)
        stream = stream + self._ranks.all_reduce(attended)
        return stream + self._ranks.all_reduce(self.mlp(self.post_attention_layernorm(stream)))

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` go."""
        return joined(
            self.attention.targets(f"{prefix}attention."),
            self.mlp.targets(f"{prefix}mlp."),
            self.input_layernorm.targets(f"{prefix}input_layernorm.weight"),
            self.post_attention_layernorm.targets(f"{prefix}post_attention_layernorm.weight"),
        )


class GPTNeoXForCausalLM(Layer, Model):
    def __init__(self, options: None, config: ModelConfig) -> None:
        super().__init__()
        spec = config.spec
        has_bias = spec.attention_bias
        features = DecoderFeatures(
            qkv_bias=has_bias, out_bias=has_bias, norm_kind="layer_bias", partial_rotation=True
        )
        shape = {
            "dtype": config.dtype, "device": config.device, "communicator": config.communicator,
        }  # fmt: skip
        self._config, self._heads = config, spec.num_heads
        ropes = layer_ropes(spec, config.max_model_len, config.device, is_partial=True)
        self._rope = ropes[0]
        self.embed_in = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size, **shape)
        self._parts = [GPTNeoXLayer(config, i, rope, features) for i, rope in enumerate(ropes)]
        self.layers = nn.ModuleList(self._parts)
        self.final_layer_norm = make_norm(config, features)
        tied = self.embed_in if spec.tie_word_embeddings else None
        self.embed_out = ParallelHead(spec.vocab_size, spec.hidden_size, tied=tied, **shape)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the checkpoint's tensors."""
        targets = joined(
            self.embed_in.targets("gpt_neox.embed_in.weight"),
            *(layer.targets(f"gpt_neox.layers.{i}.") for i, layer in enumerate(self._parts)),
            self.final_layer_norm.targets("gpt_neox.final_layer_norm.weight"),
        )
        if not self._config.spec.tie_word_embeddings:
            targets |= self.embed_out.targets("embed_out.weight")
        load_tensors(self, self._named(tensors), targets, ignored=lambda n: n.endswith(COMPUTED))

    def load_random(self) -> None:
        """Fill every parameter with random numbers."""
        fill_random(self)

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`."""
        inputs = forward_inputs(batch, pool, [self._rope], self._config)
        stream = self.embed_in(batch.token_ids)
        for layer in self._parts:
            stream = layer(stream, inputs)
        return self.final_layer_norm(stream[batch.logits_indices])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of this rank's part of the vocabulary."""
        return self.embed_out(hidden)

    def _named(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Under the names of `Attention`: checkpoints keep query, key and value by head."""
        for name, tensor in tensors:
            if FUSED not in name:
                yield name.replace(".attention.dense.", ".attention.o_proj."), tensor
                continue
            parts = tensor.unflatten(0, (self._heads, 3, -1)).unbind(1)
            for part, own in zip(parts, ("q_proj", "k_proj", "v_proj"), strict=True):
                yield name.replace(FUSED, f".attention.{own}."), part.flatten(0, 1)
