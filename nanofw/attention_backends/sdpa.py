"""Backend `sdpa`: the reference, on any device, for any block size and head layout.

The pool keeps each block's keys as [head, token, d] and its values transposed, [head, d,
token]: then the scores of a block are `K q` and its output is `V p`, two matrix products over
memory as it lies, which is what batched products on a CPU are fast at (4 times faster than a
fused kernel over the same blocks, 30 times faster than gathering the pages first).

- Rows with one query token attend block by block (`sdpa_decode.py`); one that is alone, in fewer
  calls (`sdpa_run.py`).
- Other rows attend by `scaled_dot_product_attention`, one row after the other, to their own
  keys when nothing comes before them, else to their gathered pages (`sdpa_prefill.py`).

A block that a row starts to fill is cleared first: what an earlier owner left in it, NaN
perhaps, is multiplied by zero later, and zero times NaN is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.attention_backends.sdpa_decode import (
    DecodePart,
    LayerPool,
    attend_decode,
    prepare_decode,
)
from nanofw.attention_backends.sdpa_prefill import (
    PrefillInputs,
    PrefillRow,
    attend_prefill,
    prepare_prefill,
)
from nanofw.attention_backends.sdpa_run import RunPart, attend_run, prepare_run
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig, ForwardBatch
from nanofw.kernels.transfer import to_device


@dataclass(slots=True)
class SdpaMetadata:
    """What all layers of a batch share.

    Attributes:
        num_tokens: tokens of rows; those after them are padding.
        blocks, offsets: int64[t], where each token's keys and values go.
        started: int64[c], blocks that are cleared before they are written.
        decode: by sliding window, rows with one query token; empty: there are none.
        prefill: the other rows.
    """

    num_tokens: int
    blocks: torch.Tensor
    offsets: torch.Tensor
    started: torch.Tensor
    decode: dict[int | None, DecodePart | RunPart]
    prefill: list[PrefillRow]


class SdpaBackend(AttentionBackend):
    """Constructed as `SdpaBackend(options, config)`."""

    def __init__(self, options: object, config: AttentionConfig) -> None:
        self._config = config
        windows = config.sliding_windows or (None,) * config.num_layers
        self._windows = tuple(windows)

    def allocate(self, num_blocks: int) -> list[LayerPool]:
        """The KV pool, uninitialised: memory is taken as blocks are written."""
        config = self._config
        blocks, heads = num_blocks + 1, config.num_kv_heads
        size, dim = config.block_size, config.head_dim

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=config.dtype, device=config.device)

        return [
            LayerPool(empty(blocks, heads, size, dim), empty(blocks, heads, dim, size))
            for _ in range(config.num_layers)
        ]

    def bytes_per_block(self) -> int:
        """Bytes that one block takes over all layers."""
        config = self._config
        elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        return elements * config.block_size * config.dtype.itemsize

    def copy_blocks(self, pool: list[LayerPool], copies: torch.Tensor) -> None:
        """Copy int64[c, 2] blocks (source, target) in every layer."""
        source, target = copies[:, 0], copies[:, 1]
        for keys, values in pool:
            keys[target] = keys[source]
            values[target] = values[source]

    def prepare(self, batch: ForwardBatch) -> SdpaMetadata:
        """Where tokens are written, and which blocks each row reads, for all layers."""
        size, device = self._config.block_size, self._config.device
        tables = batch.host_block_tables
        if tables is None:
            tables = batch.block_tables.cpu().numpy()
        single = batch.host_query_lens == 1
        rows = np.flatnonzero(single)
        decode: dict[int | None, DecodePart | RunPart] = {}
        if len(rows):
            starts = np.cumsum(batch.host_query_lens) - batch.host_query_lens
            lens = batch.host_context_lens[rows]
            for window in set(self._windows):
                alone = self._prepare_alone(starts[rows], lens, tables[rows], window)
                decode[window] = alone or prepare_decode(
                    starts[rows], lens, tables[rows], size, window, device
                )
        return SdpaMetadata(
            num_tokens=int(batch.host_query_lens.sum()),
            blocks=torch.where(batch.slots < 0, -1, batch.slots // size),
            offsets=batch.slots % size,
            started=to_device(self._started_blocks(batch, tables), device),
            decode=decode,
            prefill=[]
            if len(rows) == len(single)
            else prepare_prefill(batch, np.flatnonzero(~single), tables, size, device),
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        kv: LayerPool,
        batch: ForwardBatch,
        scale: float,
    ) -> torch.Tensor:
        """Store keys and values, then attend. See the contract."""
        metadata: SdpaMetadata = batch.attention
        window = self._windows[layer]
        self._store(key, value, kv, metadata)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if metadata.num_tokens < out.shape[0]:
            out[metadata.num_tokens :] = 0  # what lies there could be slow to multiply
        if metadata.decode:
            part = metadata.decode[window]
            if isinstance(part, RunPart):
                attend_run(query, kv, part, scale, out)
            else:
                attend_decode(query, kv, part, scale, out, self._config.soft_cap)
        if metadata.prefill:
            inputs = PrefillInputs(query, key, value, kv, scale, out, self._config.soft_cap)
            for row in metadata.prefill:
                attend_prefill(inputs, row, window)
        return out

    def _prepare_alone(
        self, tokens: IntArray, context_lens: IntArray, tables: IntArray, window: int | None
    ) -> RunPart | None:
        """The part of a row that decodes alone, where there is a short way for it."""
        config = self._config
        is_plain = config.dtype == torch.float32 and config.soft_cap is None
        if len(tokens) != 1 or config.device.type != "cpu" or not is_plain:
            return None
        return prepare_run(
            int(tokens[0]), int(context_lens[0]), tables[0], config.block_size,
            config.num_kv_heads, window,
        )  # fmt: skip

    def _store(
        self, key: torch.Tensor, value: torch.Tensor, kv: LayerPool, metadata: SdpaMetadata
    ) -> None:
        if len(metadata.started):
            kv.keys.index_fill_(0, metadata.started, 0)
            kv.values.index_fill_(0, metadata.started, 0)
        kv.keys[metadata.blocks, :, metadata.offsets] = key
        kv.values[metadata.blocks, :, :, metadata.offsets] = value

    def _started_blocks(self, batch: ForwardBatch, tables: IntArray) -> np.ndarray:
        """int64[c]: last blocks of rows that this pass begins and does not fill."""
        size = self._config.block_size
        ends = batch.host_context_lens
        last = (ends - 1) // size
        begun = (last * size >= ends - batch.host_query_lens) & (ends % size != 0)
        rows = np.flatnonzero(begun)
        return tables[rows, last[rows]].astype(np.int64)
