"""Our own paged kernels: nothing beyond the Triton that torch brings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from nanofw.attention_backends.paged import PagedPool
from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch

if TYPE_CHECKING:
    from nanofw.kernels.triton.attention_prefill import PrefillTiles
    from nanofw.kernels.triton.tuning import PrefillConfig


@dataclass(slots=True)
class TritonMetadata:
    """How a batch is cut into tiles, computed once for all layers.

    Attributes:
        num_decodes: rows, the first ones, that the decode kernel looks at.
        decode_starts: per window, the first tile of each of them, int32[num_decodes + 1].
        prefill: query tiles of the rows that the prefill kernel looks at; None: there are none.
    """

    num_decodes: int
    decode_starts: dict[int | None, torch.Tensor] = field(default_factory=dict)
    prefill: PrefillTiles | None = None


class TritonAttention(PagedPool):
    """Backend `triton`: split decode over decoding rows, tiled prefill over the others.

    The work of a layer is shared out on the device from the lengths there, so launches depend
    on row and token counts alone and can be captured.
    """

    def __init__(self, options: object, config: AttentionConfig) -> None:
        from nanofw.kernels.triton import attention_decode as decode
        from nanofw.kernels.triton import attention_prefill as prefill
        from nanofw.kernels.triton import paging, tile_starts, tuning

        super().__init__(config)
        self._decode, self._prefill = decode, prefill
        self._tile_starts, self._paging = tile_starts, paging
        group = config.num_heads // config.num_kv_heads
        size = config.dtype.itemsize
        self._decode_config = tuning.decode_config(config.head_dim, size, group)
        self._few_rows_config = tuning.few_rows_decode_config(config.head_dim, size, group)
        self._few_rows = tuning.FEW_ROWS
        self._workspace = decode.decode_workspace(
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.max_num_seqs,
            self._decode_config,
            config.device,
        )
        self.set_prefill_config(tuning.prefill_config(config.head_dim, size, group))

    def set_prefill_config(self, config: PrefillConfig) -> None:
        """Take another block shape for the batches prepared from now on."""
        group = self.config.num_heads // self.config.num_kv_heads
        self.prefill_config = config
        self._tokens_per_tile = self._prefill.query_tokens_per_tile(config, group)

    def prepare(self, batch: ForwardBatch) -> TritonMetadata:
        """Where the tiles of each row begin."""
        num_decodes, num_rows = batch.num_decodes, batch.context_lens.shape[0]
        if batch.max_chunks is not None and num_decodes < num_rows:
            return self._prepare_captured(batch, batch.max_chunks)
        metadata = TritonMetadata(num_decodes)
        pad = self._workspace.batch_pad
        if num_decodes:
            lengths = batch.context_lens[:num_decodes]
            tile = self._decode_config.tile
            metadata.decode_starts = {
                window: self._decode.decode_tile_starts(lengths, tile, pad, window)
                for window in self.windows()
            }
        if num_decodes < num_rows:
            tokens = self._tokens_per_tile
            lengths = batch.host_query_lens[num_decodes:]
            starts = self._prefill.prefill_tile_starts(
                batch.query_starts, num_decodes, num_rows - num_decodes, tokens, pad
            )
            num_tiles = int((-(-lengths // tokens)).sum())
            metadata.prefill = self._prefill.PrefillTiles(
                batch.query_starts, starts, num_tiles, num_decodes, pad
            )
        return metadata

    def _prepare_captured(self, batch: ForwardBatch, max_chunks: int) -> TritonMetadata:
        """Both kernels look at all rows; which of them are whose is decided on the device."""
        num_tokens, num_rows = batch.positions.shape[0], batch.context_lens.shape[0]
        tokens = self._tokens_per_tile
        pad = self._workspace.batch_pad
        metadata = TritonMetadata(min(num_tokens, num_rows))
        num_tiles = self._prefill.max_query_tiles(num_tokens, max_chunks, tokens)
        for window in self.windows():
            metadata.decode_starts[window], starts = self._tile_starts.mixed_tile_starts(
                batch.query_starts,
                batch.context_lens,
                self._decode_config.tile,
                tokens,
                pad,
                window,
            )
            metadata.prefill = self._prefill.PrefillTiles(
                batch.query_starts, starts, num_tiles, 0, pad
            )
        return metadata

    def attend(
        self, query: torch.Tensor, layer: int, kv: torch.Tensor, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        metadata: TritonMetadata = batch.attention
        window, n = self.window(layer), metadata.num_decodes
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if n:
            rows = self._paging.PagedAttention(
                query[:n], kv[0], kv[1], batch.block_tables[:n], batch.context_lens[:n],
                scale, window, out[:n], self.config.soft_cap,
            )  # fmt: skip
            starts = metadata.decode_starts[window]
            chosen = self._few_rows_config if n <= self._few_rows else self._decode_config
            self._decode.decode_attention(rows, starts, self._workspace, chosen)
        if metadata.prefill is not None:
            batch_attention = self._paging.PagedAttention(
                query, kv[0], kv[1], batch.block_tables, batch.context_lens, scale, window, out,
                self.config.soft_cap,
            )  # fmt: skip
            self._prefill.prefill_attention(batch_attention, metadata.prefill, self.prefill_config)
        return out


def probe(device: str, options: object) -> Mapping[str, object] | str:
    """What the kernels can do on this device, or why they cannot run."""
    refused = (
        f"the kernels run on NVIDIA GPUs, not on {device!r}; "
        "set TRITON_INTERPRET=1 to run them in Triton's interpreter (very slow)"
    )
    if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        return refused  # without the import of Triton, which takes a fifth of a start
    try:
        from nanofw.kernels.triton.common import INTERPRETED
    except ImportError as error:
        return f"Triton cannot be imported ({error}): pip install 'nanofw[triton]'"
    if device.startswith("cuda"):
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"compute capability {major}.{minor}: the kernels need 8.0 or later"
        return {}
    if INTERPRETED:
        return {"cuda_graph": False, "cuda_graph_prefill": False}
    return refused
