"""Qwen3, dense: pre-norm decoder, grouped queries, queries and keys normalised by head.

Yang et al., "Qwen3 Technical Report".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from nanofw.core.contracts.attention_backend import ForwardBatch
from nanofw.core.contracts.model import ModelContext
from nanofw.core.model_spec import ModelSpec
from nanofw.models.layers import (
    Attention,
    GatedMLP,
    Layer,
    ParallelHead,
    PassInputs,
    RMSNorm,
    RotaryEmbedding,
    Targets,
    VocabParallelEmbedding,
    joined,
    load_tensors,
    pass_inputs,
)


class Qwen3Layer(Layer):
    """Attention and feed-forward part, each behind a norm and beside the residual stream."""

    def __init__(
        self, spec: ModelSpec, context: ModelContext, layer: int, rope: RotaryEmbedding
    ) -> None:
        super().__init__()
        kinds = {"dtype": context.dtype, "device": context.device}
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, **kinds)
        self.self_attn = Attention(
            spec, context, layer, rope,
            qk_norm=True, qkv_bias=spec.attention_bias, out_bias=spec.attention_bias,
        )  # fmt: skip
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps, **kinds)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, context)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, inputs: PassInputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of the feed-forward part, not yet added, and the residual stream: [t, hidden]."""
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(hidden, inputs)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual)
        return self.mlp(hidden), residual

    def targets(self, prefix: str) -> Targets:
        """Where the tensors under `prefix` (with its final dot) go."""
        return joined(
            self.input_layernorm.targets(f"{prefix}input_layernorm.weight"),
            self.self_attn.targets(f"{prefix}self_attn."),
            self.post_attention_layernorm.targets(f"{prefix}post_attention_layernorm.weight"),
            self.mlp.targets(f"{prefix}mlp."),
        )


class Qwen3ForCausalLM(Layer):
    """Constructed as `Qwen3ForCausalLM(spec, context)`, empty; `load` fills it."""

    def __init__(self, spec: ModelSpec, context: ModelContext) -> None:
        super().__init__()
        kinds = {"dtype": context.dtype, "device": context.device}
        ranks = context.communicator
        self._spec, self._context = spec, context
        self._rope = RotaryEmbedding(spec, context.max_model_len, context.device)
        self.embed_tokens = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, communicator=ranks, **kinds
        )
        self.layers = nn.ModuleList(
            Qwen3Layer(spec, context, layer, self._rope) for layer in range(spec.num_layers)
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
            self.embed_tokens.targets("model.embed_tokens.weight"),
            *(layer.targets(f"model.layers.{i}.") for i, layer in enumerate(self._layers())),
            self.norm.targets("model.norm.weight"),
        )
        if not self._spec.tie_word_embeddings:
            targets |= self.lm_head.targets("lm_head.weight")
        load_tensors(self, tensors, targets, ignored=self._is_needless)

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`, after the last norm."""
        inputs = pass_inputs(batch, pool, self._rope, self._context)
        hidden, residual = self.embed_tokens(batch.token_ids), None
        for layer in self._layers():
            hidden, residual = layer(hidden, residual, inputs)
        assert residual is not None
        wanted = batch.logits_indices
        return self.norm.add(hidden[wanted], residual[wanted])[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocabulary of this rank] of [s, hidden], padding of the range included."""
        return self.lm_head(hidden)

    def _layers(self) -> Iterable[Qwen3Layer]:
        return self.layers  # pyright: ignore[reportReturnType]

    def _is_needless(self, name: str) -> bool:
        tied_head = self._spec.tie_word_embeddings and name == "lm_head.weight"
        return tied_head or name.endswith(".rotary_emb.inv_freq")
