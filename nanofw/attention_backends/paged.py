"""What backends with paged kernels share: the KV pool, and the store before the attention."""

from __future__ import annotations

from abc import abstractmethod

import torch

from nanofw.contracts.attention_backend import (
    AttentionConfig,
    ForwardBatch,
    FusedAttentionBackend,
    FusedInputs,
)


class PagedPool(FusedAttentionBackend):
    """Keys and values of each layer in one tensor [2, num_blocks, page, num_kv_heads, head_dim].

    Attributes:
        heads_first: lay the heads of a block before its slots in memory, so that what a head
            reads of a block is one piece.
    """

    heads_first = True

    def __init__(self, config: AttentionConfig) -> None:
        from nanofw.kernels.triton import kv_store

        self.config = config
        self._store = kv_store

    def allocate(self, num_blocks: int) -> list[torch.Tensor]:
        """The pool, one tensor a layer; zeros, so that no kernel ever meets a stray NaN."""
        c = self.config
        sizes = (c.block_size, c.num_kv_heads)
        if self.heads_first:
            sizes = sizes[::-1]
        pool = torch.zeros(
            (c.num_layers, 2, num_blocks, *sizes, c.head_dim), dtype=c.dtype, device=c.device
        )
        return list(pool.transpose(3, 4) if self.heads_first else pool)

    def bytes_per_block(self) -> int:
        """Bytes that one block takes over all layers."""
        c = self.config
        elements = 2 * c.num_layers * c.block_size * c.num_kv_heads * c.head_dim
        return elements * c.dtype.itemsize

    def copy_blocks(self, pool: list[torch.Tensor], copies: torch.Tensor) -> None:
        """Copy int64[c, 2] blocks (source, target) in every layer."""
        if copies.shape[0] == 0:
            return
        source, target = copies[:, 0], copies[:, 1]
        for kv in pool:
            kv[:, target] = kv[:, source]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        kv: torch.Tensor,
        batch: ForwardBatch,
        scale: float,
    ) -> torch.Tensor:
        """Store keys and values, then attend; see the contract."""
        self._store.store_kv(key, value, kv, batch.slots)
        return self.attend(query, layer, kv, batch, scale)

    def forward_fused(
        self,
        inputs: FusedInputs,
        layer: int,
        kv: torch.Tensor,
        batch: ForwardBatch,
        scale: float,
    ) -> torch.Tensor:
        """Norm, rotation and store in one kernel, then attend."""
        query = self._store.qkv_rope_store(
            inputs, self.config.num_heads, kv, batch.positions, batch.slots
        )
        return self.attend(query, layer, kv, batch, scale)

    @abstractmethod
    def attend(
        self, query: torch.Tensor, layer: int, kv: torch.Tensor, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        """Causal attention of [t, num_heads, head_dim] rotated queries; the keys are stored."""

    def window(self, layer: int) -> int | None:
        """Keys that a query of the layer sees at most; None: all."""
        windows = self.config.sliding_windows
        return windows[layer] if windows else None

    def windows(self) -> set[int | None]:
        """All windows of the model."""
        return set(self.config.sliding_windows) or {None}
