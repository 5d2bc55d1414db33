"""Our own paged kernels: nothing beyond the Triton that torch brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nanofw.attention_backends.paged import PagedPool
from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch

if TYPE_CHECKING:
    from nanofw.kernels.triton.tuning import PrefillConfig


@dataclass(slots=True)
class TritonMetadata:
    """How a batch is cut into tiles, computed once for all layers.

    Attributes:
        num_decodes: rows, the first ones, that the decode kernel looks at.
        first_prefill: the row from which on the prefill kernel looks at them.
        decode_starts: per window, the first tile of each of the former, int32[num_decodes + 1].
        prefill_starts: first query tile of each of the latter, or None without such rows.
        num_query_tiles: at least as many as there are.
    """

    num_decodes: int
    first_prefill: int

    decode_starts: dict[int | None, torch.Tensor] = field(default_factory=dict)
    prefill_starts: torch.Tensor | None = None
    num_query_tiles: int = 0


class TritonAttention(PagedPool):
    """Backend `triton`: split decode over decoding rows, tiled prefill over the others.

    The work of a layer is shared out on the device from the lengths there, so launches depend
    on row and token counts alone and can be captured.
    """

    def __init__(self, options: Any, config: AttentionConfig) -> None:
        from nanofw.kernels.triton import attention_decode as decode
        from nanofw.kernels.triton import attention_prefill as prefill
        from nanofw.kernels.triton import tile_starts as triton_tile_starts
        from nanofw.kernels.triton import tuning as triton_tuning

        super().__init__(config)
        self._decode, self._prefill, self._tile_starts = decode, prefill, triton_tile_starts
        group = config.num_heads // config.num_kv_heads
        size = config.dtype.itemsize
        self.decode_config = triton_tuning.decode_config(config.head_dim, size, group)
        self.workspace = decode.decode_workspace(
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.max_num_seqs,
            self.decode_config,
            config.device,
        )
        self.set_prefill_config(triton_tuning.prefill_config(config.head_dim, size, group))

    def set_prefill_config(self, config: PrefillConfig) -> None:
        """Take another block shape for the batches prepared from now on."""
        group = self.config.num_heads // self.config.num_kv_heads
        self.prefill_config = config
        self._tokens_per_tile = self._prefill.query_tokens_per_tile(config, group)

    def prepare(self, batch: ForwardBatch) -> TritonMetadata:
        """Where the tiles of each row begin."""
        num_decodes, num_rows = batch.num_decodes, batch.context_lens.shape[0]
        if batch.max_chunks is not None and num_decodes < num_rows:
            return self._prepare_recorded(batch, batch.max_chunks)
        metadata = TritonMetadata(num_decodes, num_decodes)
        pad = self.workspace.batch_pad
        if num_decodes:
            lengths = batch.context_lens[:num_decodes]
            tile = self.decode_config.tile
            metadata.decode_starts = {
                window: self._decode.decode_tile_starts(lengths, tile, pad, window)
                for window in self.windows()
            }
        if num_decodes < num_rows:
            tokens = self._tokens_per_tile
            lengths = batch.host_query_lens[num_decodes:]
            metadata.num_query_tiles = int((-(-lengths // tokens)).sum())
            metadata.prefill_starts = self._prefill.prefill_tile_starts(
                batch.query_starts, num_decodes, num_rows - num_decodes, tokens, pad
            )
        return metadata

    def _prepare_recorded(self, batch: ForwardBatch, max_chunks: int) -> TritonMetadata:
        """Both kernels look at all rows; which of them are whose is decided on the device."""
        num_tokens, num_rows = batch.positions.shape[0], batch.context_lens.shape[0]
        tokens = self._tokens_per_tile
        metadata = TritonMetadata(min(num_tokens, num_rows), 0)
        metadata.num_query_tiles = self._prefill.max_query_tiles(num_tokens, max_chunks, tokens)
        for window in self.windows():
            metadata.decode_starts[window], metadata.prefill_starts = (
                self._tile_starts.mixed_tile_starts(
                    batch.query_starts, batch.context_lens, self.decode_config.tile, tokens,
                    self.workspace.batch_pad, window,
                )
            )  # fmt: skip
        return metadata

    def attend(
        self, query: torch.Tensor, layer: int, kv: torch.Tensor, batch: ForwardBatch, scale: float
    ) -> torch.Tensor:
        metadata: TritonMetadata = batch.attention
        window = self.window(layer)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        n = metadata.num_decodes
        if n:
            self._decode.decode_attention(
                query[:n], kv[0], kv[1], batch.block_tables[:n], batch.context_lens[:n],
                metadata.decode_starts[window], self.workspace, self.decode_config, scale, window,
                out[:n],
            )  # fmt: skip
        if metadata.prefill_starts is not None:
            self._prefill.prefill_attention(
                query, kv[0], kv[1], batch.block_tables, batch.query_starts, batch.context_lens,
                metadata.prefill_starts, metadata.num_query_tiles, metadata.first_prefill,
                self.prefill_config, self.workspace.batch_pad, scale, window, out,
            )  # fmt: skip
        return out


def probe(device: str, options: Any) -> Mapping[str, Any] | str:
    """What the kernels can do on this device, or why they cannot run."""
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
    return (
        f"the kernels run on NVIDIA GPUs, not on {device!r}; "
        "set TRITON_INTERPRET=1 to run them in Triton's interpreter (very slow)"
    )
