"""Decode steps as CUDA graphs, one per batch-size bucket.

A step of a bucket is two replays. The first gathers the step's inputs from the rows on the
device and runs the model up to the hidden states; the second, one per variant of the sampler,
computes the logits, draws and appends the tokens to the rows. Steps whose draw needs the host
(masks, logits processors, log probabilities) replay the first and go on eagerly.

The host sends (row, position) of each line and nothing else. Lines that fill a bucket up are
padding: position -1, no context, slot -1, the spare row after all others.

All graphs share one memory pool; the largest is captured first, so that the others fit in what
it took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from nanofw.core.contracts.attention_backend import AttentionBackend, ForwardBatch
from nanofw.core.contracts.model import Model
from nanofw.core.contracts.sampler import DeviceSampler, SampledTokens, Sampler
from nanofw.core.plan import StepPlan
from nanofw.kernels.decode_inputs import DecodeInputs, gather_decode_inputs
from nanofw.runtime.batch import StepBatch
from nanofw.runtime.rows import RowState

Run = Callable[[], Any]
_UPLOAD_BUFFERS = 4  # more than steps may be in flight: none is overwritten before it was sent


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture, rising; the last is `max_num_seqs`, whatever it is.

    Small ones are powers of two, then steps of 8, 16 and 32: what padding costs stays under a
    few percent, and so does the number of graphs.
    """
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs must be at least 1, not {max_num_seqs}")
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


class Recorder(Protocol):
    """How a piece of work is recorded for replay."""

    def record(self, run: Run) -> Run:
        """Record `run`; calling the result does its work again, on the same memory."""
        ...


class CudaRecorder:
    """Records CUDA graphs into one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, run: Run) -> Run:
        """Run once, so that kernels are compiled and libraries ready, then capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph.replay


Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], SampledTokens]
"""Hidden states, rows and positions on the device, variant of the sampler -> tokens."""


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """What a decode step runs. `draw` computes the logits and draws, on all ranks together."""

    model: Model
    backend: AttentionBackend
    sampler: Sampler
    rows: RowState
    pool: list[Any]
    block_size: int
    draw: Draw


@dataclass(slots=True)
class _Bucket:
    """The graphs of one batch size, and their results."""

    inputs: DecodeInputs
    forward: Run
    draws: dict[str, Run]
    drawn: dict[str, SampledTokens]


class DecodeGraphs:
    """Captured when made. One step at a time: the buffers belong to the last one submitted.

    Attributes:
        sizes: the buckets, rising.
        hits: steps that were replayed.
        misses: steps that were not, by reason.
    """

    def __init__(
        self, parts: DecodeParts, max_num_seqs: int, hidden: torch.Tensor, recorder: Recorder
    ) -> None:
        """`hidden`: [>= max_num_seqs, hidden size], where forward graphs leave their result."""
        self.sizes = buckets(max_num_seqs)
        self.hits = 0
        self.misses: Counter[str] = Counter()
        self._parts, self._padding_row = parts, max_num_seqs
        self._hidden = hidden
        device = hidden.device
        self._lines = torch.zeros(max_num_seqs, 2, dtype=torch.int64, device=device)
        self._upload = _Upload(max_num_seqs, device)
        width = parts.rows.block_tables.shape[1]
        self._inputs = DecodeInputs.allocate(max_num_seqs, width, device)
        self._starts = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._indices = torch.arange(max_num_seqs, device=device)
        self._fill([], [], max_num_seqs)
        self._buckets = {size: self._record(size, recorder) for size in reversed(self.sizes)}

    def forward(self, plan: StepPlan) -> tuple[StepBatch, torch.Tensor] | None:
        """Replay the forward pass of a plan that was applied to the rows.

        Returns:
            The batch and the hidden states [n, hidden], valid until the next step; None when
            the plan is not one token of each row, which is counted.
        """
        n = len(plan.rows)
        if plan.num_decodes != n or not plan.samples.all() or n == 0:
            self.misses["prefill"] += 1
            return None
        if n > self.sizes[-1]:
            self.misses["more rows than the largest graph"] += 1
            return None
        self.hits += 1
        size = self.sizes[int(np.searchsorted(self.sizes, n))]
        self._fill(plan.rows, plan.starts, size)
        bucket = self._buckets[size]
        bucket.forward()
        batch = StepBatch(
            passes=[],
            rows=plan.rows,
            positions=plan.starts + 1,
            device_rows=bucket.inputs.rows[:n],
            device_positions=bucket.inputs.next_positions[:n],
            graph_size=size,
        )
        return batch, self._hidden[:n]

    def draw(self, batch: StepBatch, variant: str) -> SampledTokens:
        """Replay the draw after `forward`, with a variant of the sampler."""
        bucket, n = self._buckets[batch.graph_size], len(batch.rows)
        bucket.draws[variant]()
        drawn = bucket.drawn[variant]
        return SampledTokens(token_ids=drawn.token_ids[:n], failed=drawn.failed[:n])

    def _record(self, size: int, recorder: Recorder) -> _Bucket:
        inputs = self._inputs.first(size)
        bucket = _Bucket(inputs, recorder.record(lambda: self._run(inputs, size)), {}, {})
        sampler = self._parts.sampler
        for variant in sampler.variants if isinstance(sampler, DeviceSampler) else ():

            def run(variant: str = variant) -> None:
                bucket.drawn[variant] = self._run_draw(inputs, size, variant)

            bucket.draws[variant] = recorder.record(run)
        return bucket

    def _run(self, inputs: DecodeInputs, size: int) -> None:
        parts = self._parts
        gather_decode_inputs(
            self._lines[:size], parts.rows.token_ids, parts.rows.block_tables, parts.block_size,
            inputs,
        )  # fmt: skip
        batch = self._batch(inputs, size)
        batch.attention = parts.backend.prepare(batch)
        self._hidden[:size].copy_(parts.model.forward(batch, parts.pool))

    def _run_draw(self, inputs: DecodeInputs, size: int, variant: str) -> SampledTokens:
        parts = self._parts
        drawn = parts.draw(self._hidden[:size], inputs.rows, inputs.next_positions, variant)
        parts.rows.append(inputs.rows, inputs.next_positions, drawn.token_ids)
        return drawn

    def _batch(self, inputs: DecodeInputs, size: int) -> ForwardBatch:
        # Host lengths are bounds: what is captured must not depend on them.
        longest = self._parts.rows.token_ids.shape[1]
        return ForwardBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            block_tables=inputs.block_tables,
            query_starts=self._starts[: size + 1],
            context_lens=inputs.context_lens,
            host_query_lens=np.ones(size, np.int32),
            host_context_lens=np.full(size, longest, np.int32),
            num_decodes=size,
            logits_indices=self._indices[:size],
        )

    def _fill(self, rows: Any, starts: Any, size: int) -> None:
        """Send the lines of a step, padded to `size`."""
        lines = self._upload.next()
        n = len(rows)
        lines[:n, 0], lines[:n, 1] = rows, starts
        lines[n:size, 0], lines[n:size, 1] = self._padding_row, -1
        self._upload.send(self._lines, size)


class _Upload:
    """Host buffers in turn, pinned where that matters."""

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._buffers = [
            torch.zeros(size, 2, dtype=torch.int64, pin_memory=pinned)
            for _ in range(_UPLOAD_BUFFERS)
        ]
        self._arrays = [buffer.numpy() for buffer in self._buffers]
        self._turn = 0

    def next(self) -> np.ndarray:
        """The buffer to fill now."""
        self._turn = (self._turn + 1) % _UPLOAD_BUFFERS
        return self._arrays[self._turn]

    def send(self, target: torch.Tensor, size: int) -> None:
        """Copy the first lines of that buffer to the device, without waiting."""
        target[:size].copy_(self._buffers[self._turn][:size], non_blocking=True)
