"""Attention by the FlashAttention that is installed; keys and values stored by our kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nanofw.attention_backends.flash_attn_versions import FlashVersion, find_version
from nanofw.attention_backends.paged import PagedPool
from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch
from nanofw.errors import CapabilityError


@dataclass(slots=True)
class FlashMetadata:
    """What all layers of a pass share.

    Attributes:
        max_query_len: longest row of the pass.
        key_starts: int32[n + 1], prefix sums of the context lengths (FlashAttention-2, unless
            the pass is all decode).
        schedules: per window, FlashAttention-3's scheduler metadata.
    """

    max_query_len: int
    key_starts: torch.Tensor | None = None
    schedules: dict[int | None, torch.Tensor] = field(default_factory=dict)


class FlashAttention(PagedPool):
    """Backend `flash_attn`: one call a layer, for decode, prefill and mixed batches alike."""

    heads_first = False

    def __init__(self, options: object, config: AttentionConfig) -> None:
        super().__init__(config)
        wanted = getattr(options, "version", None)
        found = find_version(torch.cuda.get_device_capability(config.device), wanted)
        if isinstance(found, str):
            raise CapabilityError(f"attention_backend: flash_attn: {found}")
        self.version: FlashVersion = found

    def prepare(self, batch: ForwardBatch) -> FlashMetadata:
        """Lengths and schedules, once for all layers."""
        n = batch.context_lens.shape[0]
        all_decode = batch.num_decodes == n
        metadata = FlashMetadata(1 if all_decode else int(batch.host_query_lens.max()))
        if self.version.number == 3:
            metadata.schedules = {
                window: self._schedule(batch, metadata.max_query_len, window)
                for window in self.windows()
            }
        elif self.version.number == 2 and not all_decode:
            starts = batch.context_lens.new_zeros(n + 1)
            torch.cumsum(batch.context_lens, 0, out=starts[1:])
            metadata.key_starts = starts
        return metadata

    def _schedule(
        self, batch: ForwardBatch, max_query_len: int, window: int | None
    ) -> torch.Tensor:
        c = self.config
        capped = {} if c.soft_cap is None else {"has_softcap": True}
        return self.version.module.get_scheduler_metadata(
            batch.context_lens.shape[0],
            max_query_len,
            batch.block_tables.shape[1] * c.block_size,
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
            batch.context_lens,
            qkv_dtype=c.dtype,
            cu_seqlens_q=None if max_query_len == 1 else batch.query_starts,
            page_size=c.block_size,
            causal=True,
            window_size=_window_size(window),
            **capped,
        )

    def attend(
        self, query: torch.Tensor, layer: int, kv: torch.Tensor, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        metadata: FlashMetadata = batch.attention
        module, number = self.version.module, self.version.number
        arguments = self._arguments(batch, self.window(layer))
        arguments |= {"softmax_scale": scale, "causal": True}
        if self.config.soft_cap is not None:
            arguments["softcap"] = self.config.soft_cap
        if metadata.max_query_len == 1 and number != 4:
            attend = module.flash_attn_with_kvcache
            return attend(query.unsqueeze(1), kv[0], kv[1], **arguments).squeeze(1)
        attend = module.flash_attn_with_kvcache if number == 3 else module.flash_attn_varlen_func
        arguments |= {"cu_seqlens_q": batch.query_starts, "max_seqlen_q": metadata.max_query_len}
        out = attend(query, kv[0], kv[1], **arguments)
        return out[0] if isinstance(out, tuple) else out

    def _arguments(self, batch: ForwardBatch, window: int | None) -> dict[str, Any]:
        """Lengths and blocks of the rows, in the words of this FlashAttention."""
        metadata: FlashMetadata = batch.attention
        if self.version.number == 4:
            return {
                "seqused_k": batch.context_lens,
                "page_table": batch.block_tables,
                "window_size": (None, None) if window is None else (window - 1, 0),
            }
        if self.version.number == 3:
            return {
                "cache_seqlens": batch.context_lens,
                "page_table": batch.block_tables,
                "window_size": _window_size(window),
                "scheduler_metadata": metadata.schedules[window],
            }
        tables = {"block_table": batch.block_tables, "window_size": _window_size(window)}
        if metadata.max_query_len == 1:
            return tables | {"cache_seqlens": batch.context_lens}
        longest = int(batch.host_context_lens.max())
        return tables | {"cu_seqlens_k": metadata.key_starts, "max_seqlen_k": longest}


class StoreOnly(PagedPool):
    """Stands for `FlashAttention` where kernels are compiled ahead: only the store is ours."""

    heads_first: bool = FlashAttention.heads_first

    def __init__(self, options: object, config: AttentionConfig) -> None:
        super().__init__(config)

    def prepare(self, batch: ForwardBatch) -> None:
        """Nothing has to be prepared."""

    def attend(
        self, query: torch.Tensor, layer: int, kv: torch.Tensor, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        return torch.empty_like(query)


def _window_size(window: int | None) -> tuple[int, int]:
    """Keys left and right of a query's own position; -1: all of them."""
    return (-1, -1) if window is None else (window - 1, 0)


def probe(device: str, options: object) -> Mapping[str, object] | str:
    """What the installed FlashAttention can do on this card, or why it can do nothing."""
    if not device.startswith("cuda"):
        return f"FlashAttention runs on NVIDIA GPUs, not on {device!r}"
    found = find_version(
        torch.cuda.get_device_capability(device), getattr(options, "version", None)
    )
    if isinstance(found, str):
        return found
    measured = {} if found.number == 3 else {"few_long_rows": 0}
    return {**found.limits, **measured, "uses": str(found)}
