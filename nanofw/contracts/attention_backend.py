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
    """Facts that a backend is constructed with. The numbers of heads are those of this rank.

    Attributes:
        num_heads: query heads of a layer.
        num_kv_heads: heads of keys and values of a layer.
        head_dim: elements of a head.
        num_layers: layers of the model.
        block_size: tokens in a block of the pool.
        max_num_seqs: rows of a pass, at most.
        max_num_batched_tokens: tokens of a pass, at most.
        max_model_len: tokens of a request, at most.
        dtype: type of queries, keys and values.
        device: where the pool and all tensors of a pass are.
        sliding_windows: for each layer, the largest number of keys that a query sees; None: all
            keys. An empty tuple: all keys in every layer.
        soft_cap: after scaling, each score s becomes soft_cap * tanh(s / soft_cap); None: scores
            are not changed. Only backends with the capability `soft_cap` get a value.
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
    """One forward pass over t tokens of n rows. It is passed through the layers, and not kept.

    Rows are laid out one after the other; the first `num_decodes` have one query token each.
    Tokens past the last row's are padding, with slot -1. A field described as `device` is
    a tensor on the device; arrays on the host are numpy.

    Attributes:
        token_ids: device int32 or int64[t].
        positions: device int64[t], 0-based: the number of tokens before this token in its request.
        slots: device int64[t], where each token's KV goes: block * block_size + offset;
            -1 writes nothing.
        block_tables: device int32[n, b], each row's blocks; entries after the end of a row's table
            are arbitrary, but valid block ids.
        query_starts: device int32[n + 1], first token of each row in the flat layout.
        context_lens: device int32[n], keys of each row, this pass included.
        host_query_lens, host_context_lens: int32[n] on the host.
        host_block_tables: int32[n, b], `block_tables` on the host; None: ask the device.
        num_decodes: rows with exactly one query token, all first.
        logits_indices: device int64[s], flat positions whose logits are wanted. If all rows
            decode and s = t, these are all positions in order.
        rows: int32[n] on the host, the number of each row in the run; empty in a pass that is
            captured.
        arguments: for each row, the arguments of its request for the model. Rows without arguments
            are left out. There may be rows that are not in this batch. Read-only.
        attention: what the backend's `prepare` made of the batch, for all layers.
        max_chunks: None: the lengths are those of the host arrays. A number: the pass is captured,
            and replayed with other lengths (capabilities `cuda_graph`, `cuda_graph_prefill`). Then
            (1) the kernels that are launched may depend only on the shapes of the tensors and on
            these bounds; (2) `host_query_lens` and `host_context_lens` hold upper bounds; (3) rows
            with one token come first, then at most `max_chunks` other rows; (4) any number of rows
            at the end may have no token and no context; (5) with `max_chunks` 0, n = `num_decodes`;
            otherwise `num_decodes` is 0, although any number of the first rows may have one
            token.
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
        """Store this pass's keys and values, then compute causal attention over each row's context.

        In the blocks of a row, slots after its context hold old values, possibly the NaN of a
        failed request. They must not influence the output. Multiplying them by zero is not
        enough.

        Args:
            query: [t, num_heads, head_dim], rotated.
            key, value: [t, num_kv_heads, head_dim], the key rotated.
            layer: index of the layer, for sliding windows.
            kv: the layer's entry of the pool.

        Returns:
            [t, num_heads, head_dim]. The output for padded tokens (slot -1) is ignored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedInputs:
    """The inputs of `forward_fused`, which does QK-norm, rotation and KV store in one kernel.

    Attributes:
        qkv: [t, (num_heads + 2 * num_kv_heads) * head_dim], as the projection left it.
        query_norm, key_norm: weights [head_dim], or None if the model has no such norm.
        norm_eps: the epsilon of these norms.
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
        """Like `forward`, but the backend also does the norm, the rotation and the store."""
