"""In what decoders of one family differ from those of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The norms of a layer, by the names under which checkpoints keep them, or None.

    Attributes:
        before_attention, before_mlp: of what goes into a part.
        after_attention, after_mlp: of what comes out, before it is added to the residual stream.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def are_before_only(self) -> bool:
        return self.after_attention is None and self.after_mlp is None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFeatures:
    """What a family has. The defaults are Llama's.

    Attributes:
        qk_norm: queries and keys are normalised by head.
        qk_norm_whole: they are normalised with all heads together; on one rank only.
        qkv_bias, out_bias: the projections before and after the attention have biases.
        mlp_bias: those of the feed-forward part have.
        norm_kind: `"rms"`, `"rms_plus_one"` (checkpoints keep the weights less one), `"layer"`, or
            `"layer_bias"`.
        norms: where a layer has norms.
        is_parallel: attention and feed-forward part have the same input, behind one norm.
        activations: those that checkpoints may name.
        plain_mlp: names of the two projections of a feed-forward part without a gate; None: it
            has a gate.
        fused_projections: checkpoints keep queries, keys and values as `qkv_proj`.
        fused_gate: they keep gate and up as `gate_up_proj`.
        partial_rotation: a rope may turn only a part of each head.
        interleaved_rotation: element 2i turns with 2i + 1, not with one of the other half.
        attention_scale: of the scores; None: head_dim ** -0.5.
        embedding_scale, residual_scale, logits_scale: what the embedded tokens, the outputs of
            both parts of a layer, and the logits are multiplied by.
        logits_cap: bound of the logits; None: they have none.
    """

    qk_norm: bool = False
    qk_norm_whole: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_kind: Literal["rms", "rms_plus_one", "layer", "layer_bias"] = "rms"
    norms: LayerNorms = LayerNorms()
    is_parallel: bool = False
    activations: tuple[str, ...] = ("silu",)
    plain_mlp: tuple[str, str] | None = None
    fused_projections: bool = False
    fused_gate: bool = False
    partial_rotation: bool = False
    interleaved_rotation: bool = False
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float | None = None
