"""Contract `attention_backend/2` (experimental): which kernel computes attention, on which blocks.

class Mine(AttentionBackend):
def __init__(self, options, config): self.config = config
def allocate(self, num_blocks): ...      # the pool, one entry a layer
def bytes_per_block(self): ...
def copy_blocks(self, pool, copies): ...
def forward(self, query, key, value, layer, kv, batch, scale): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nanofw.contracts.arrays import EMPTY_INT, IntArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Facts that a backend is built with, beside its options. Head counts are this rank's.

    Attributes:
        sliding_windows: by layer, the keys that a query sees at most; None: all. Empty: all, in
            every layer.
        soft_cap: scores s, scaled, become soft_cap * tanh(s / soft_cap); None: they stay. Only
            backends with the capability `soft_cap` get one.
        name: what the configuration calls it.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    sliding_windows: tuple[int | None, ...] = ()
    soft_cap: float | None = None
    name: str = ""


NO_ARGUMENTS: Mapping[int, Any] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """One forward pass over t tokens of n rows. Passed down the model, never published.

    Rows are laid out one after the other; the first `num_decodes` have one query token each.
    Tokens past the last row's are padding, with slot -1. Host arrays are numpy; device tensors
    say so.

    Attributes:
        token_ids: device int32 or int64[t].
        positions: device int64[t], 0-based: the number of tokens before each.
        slots: device int64[t], where each token's KV goes: block * block_size + offset;
            -1 writes nothing.
        block_tables: device int32[n, b], each row's blocks; entries past its length are any
            valid block.
        query_starts: device int32[n + 1], first token of each row in the flat layout.
        context_lens: device int32[n], keys of each row, this pass included.
        host_query_lens, host_context_lens: int32[n] on the host.
        host_block_tables: int32[n, b], `block_tables` on the host; None: ask the device.
        num_decodes: rows with exactly one query token, all first.
        logits_indices: device int64[s], flat positions whose logits are wanted. Where all rows
            decode and s = t they are all tokens in their order.
        rows: int32[n] on the host, which row of the run each is; empty in a pass that is captured.
        arguments: by row, what its request carries under the model's name; only rows that carry
            something are in it, of this batch and of others. Read-only.
        attention: what the backend's `prepare` made of the batch, for all layers.
        max_chunks: None: the lengths are those of the host arrays. A number: the pass is captured
            to be replayed with other lengths (capabilities `cuda_graph`, `cuda_graph_prefill`),
            and what is launched may depend on the shapes of the tensors alone, and on these
            bounds: `host_query_lens` and `host_context_lens` hold what no row exceeds; rows of
            one token come first, and at most `max_chunks` rows follow them; any number of rows
            at the end has no token and no context. With `max_chunks` 0, n = `num_decodes`;
            else `num_decodes` is 0, though any number of the first rows may have one token.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    host_query_lens: IntArray
    host_context_lens: IntArray
    num_decodes: int
    logits_indices: torch.Tensor
    host_block_tables: IntArray | None = None
    rows: IntArray = field(default_factory=lambda: EMPTY_INT)
    arguments: Mapping[int, Any] = field(default_factory=lambda: NO_ARGUMENTS)
    attention: Any = None
    max_chunks: int | None = None


class AttentionBackend(ABC):
    """Base of backends. Constructed as `target(options, AttentionConfig)`."""

    @abstractmethod
    def allocate(self, num_blocks: int) -> list[Any]:
        """The KV pool: one entry per layer, in a layout of the backend's choice."""

    @abstractmethod
    def bytes_per_block(self) -> int:
        """Bytes that one block takes over all layers."""

    @abstractmethod
    def copy_blocks(self, pool: list[Any], copies: torch.Tensor) -> None:
        """Copy int64[c, 2] blocks (source, target) in every layer."""

    def prepare(self, batch: ForwardBatch) -> Any:
        """Metadata of a batch, computed once for all layers; stored in `batch.attention`."""
        return None

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        kv: Any,
        batch: ForwardBatch,
        scale: float,
    ) -> torch.Tensor:
        """Store this pass's keys and values, then attend causally over each row's context.

        Slots of a row's blocks past its context hold whatever was left there, NaN of a request
        that failed included: nothing of it may reach the output, not even times zero.

        Args:
            query: [t, num_heads, head_dim], rotated.
            key, value: [t, num_kv_heads, head_dim], the key rotated.
            layer: index of the layer, for sliding windows.
            kv: the layer's entry of the pool.

        Returns:
            [t, num_heads, head_dim]. Rows of padded tokens (slot -1) mean nothing.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedInputs:
    """What the optional fused entry takes: QK-norm, rotation, KV store in one kernel.

    Attributes:
        qkv: [t, (num_heads + 2 * num_kv_heads) * head_dim], as the projection left it.
        query_norm, key_norm: weights [head_dim], or None where the model has none.
        norm_eps: their epsilon.
        cos_sin: float32[max_positions, head_dim], cosines then sines.
    """

    qkv: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    norm_eps: float
    cos_sin: torch.Tensor


class FusedAttentionBackend(AttentionBackend):
    """A backend that takes the projection's output as it is."""

    @abstractmethod
    def forward_fused(
        self, inputs: FusedInputs, layer: int, kv: Any, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        """Like `forward`, with norm, rotation and store done by the backend."""
