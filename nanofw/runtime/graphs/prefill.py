"""Steps with prefill as CUDA graphs, one for each number of tokens.

A prompt of a hundred tokens is a few hundred short kernels: launched one by one, their launches
are what the first token waits for. A graph of t tokens serves every step of up to t: whole
prompts, chunks and extends over a prefix, decoding rows beside them. Lengths stand on the device
alone, and each row's share of the work is found there.

The hidden states of the rows that sample come first and in order, so that sampling is that of a
decode step of as many rows.

Graphs of small steps are captured at the start, and that of the largest, whose memory all others
share. Any other is captured by the first step that needs it: that step runs eagerly, and its
launches are recorded after it.
"""

from __future__ import annotations

import numpy as np
import torch

from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.plan import StepPlan
from nanofw.kernels.decode_inputs import DecodeInputs
from nanofw.kernels.step_inputs import StepInputs, gather_step_inputs
from nanofw.runtime.batch import StepBatch
from nanofw.runtime.graphs.capture import Capturer, GraphParts, Run, Upload
from nanofw.runtime.graphs.sizes import max_chunks, num_padded_rows, telling_sizes

CAPTURED_AT_START = 2048
"""Tokens of a step up to which graphs are there from the start: such steps come at once."""


class PrefillGraphs:
    """Made before those of decode steps, which are smaller.

    Attributes:
        sizes: numbers of tokens, rising.

    Args:
        inputs: what decode steps read: what is kept by row is shared with them.
        row_sizes: batch sizes of decode steps, rising.
    """

    def __init__(
        self,
        parts: GraphParts,
        inputs: DecodeInputs,
        row_sizes: list[int],
        sizes: list[int],
        capturer: Capturer,
    ) -> None:
        self.sizes = sizes
        self._parts, self._row_sizes = parts, row_sizes
        self._inputs = StepInputs.allocate(sizes[-1], inputs)
        self._upload = Upload(row_sizes[-1], 4, parts.hidden.device)
        self._send(np.empty((0, 3), np.int64), np.empty(0, np.int64), row_sizes[-1])
        self._capturer = capturer
        telling = telling_sizes(sizes, row_sizes)
        self._buckets = {
            size: self._capture(size, is_known=size not in telling)
            for size in reversed(sizes)
            if size <= CAPTURED_AT_START or size == sizes[-1]
        }

    def miss_reason(self, plan: StepPlan) -> str | None:
        """Why no graph serves the plan, or None."""
        if plan.total_tokens > self.sizes[-1]:
            return "prefill of more tokens than the largest graph"
        if len(plan.rows) > self._row_sizes[-1] or self._size_for(plan) is None:
            return "more prompts in a step than a graph takes"
        return None

    def forward(self, plan: StepPlan) -> tuple[StepBatch, torch.Tensor]:
        """Replay the model for a plan without a `miss_reason`. See `StepGraphs.forward`."""
        ends = np.cumsum(plan.num_tokens)
        size = self._size_for(plan)
        assert size is not None
        sampling = np.flatnonzero(plan.samples)
        columns = np.stack((plan.rows, plan.starts, ends), axis=1)
        self._send(columns, sampling, num_padded_rows(size, self._row_sizes))
        replay = self._buckets.get(size)
        if replay is None:
            self._buckets[size] = self._capture(size)  # which carries out this step
        else:
            replay()
        num_sampled = len(sampling)
        batch = StepBatch(
            micro_batches=[],
            rows=plan.rows[sampling],
            positions=(plan.starts + plan.num_tokens)[sampling],
            device_rows=self._inputs.rows[:num_sampled],
            device_positions=self._inputs.next_positions[:num_sampled],
            graph_size=num_padded_rows(num_sampled, self._row_sizes) if num_sampled else 0,
        )
        return batch, self._parts.hidden[:num_sampled]

    def _size_for(self, plan: StepPlan) -> int | None:
        """The smallest graph with room for the plan's tokens and prompts."""
        is_longer = plan.num_tokens != 1
        num_chunks = len(is_longer) - int(is_longer.argmax()) if is_longer.any() else 0
        first = int(np.searchsorted(self.sizes, plan.total_tokens))
        return next((size for size in self.sizes[first:] if max_chunks(size) >= num_chunks), None)

    def _capture(self, size: int, *, is_known: bool = False) -> Run:
        """Capture steps of this size; what stands in the buffers is carried out, if not
        `is_known`."""
        num_rows = num_padded_rows(size, self._row_sizes)
        inputs = self._inputs.first(size, num_rows)
        return self._capturer.capture(lambda: self._run(inputs, num_rows), is_known=is_known)

    def _run(self, inputs: StepInputs, num_rows: int) -> None:
        parts = self._parts
        gather_step_inputs(
            self._upload.on_device[:num_rows], parts.rows.token_ids, parts.rows.block_tables,
            parts.block_size, inputs,
        )  # fmt: skip
        batch = self._batch(inputs)
        batch.attention = parts.backend.prepare(batch)
        parts.hidden[:num_rows].copy_(parts.model.forward(batch, parts.pool))

    def _batch(self, inputs: StepInputs) -> ForwardBatch:
        num_tokens, num_rows = len(inputs.token_ids), len(inputs.rows)
        return ForwardBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            block_tables=inputs.block_tables,
            query_starts=inputs.query_starts,
            context_lens=inputs.context_lens,
            host_query_lens=np.full(num_rows, num_tokens, np.int32),
            host_context_lens=np.full(num_rows, self._parts.longest, np.int32),
            num_decodes=0,
            logits_indices=inputs.logits_indices,
            max_chunks=max_chunks(num_tokens),
        )

    def _send(self, columns: np.ndarray, sampling: np.ndarray, size: int) -> None:
        """Send row, start and end of what a step computes, padded to `size`, and who samples."""
        sent = self._upload.next()
        n, end = len(columns), columns[-1, 2] if len(columns) else 0
        sent[:n, :3] = columns
        sent[n:size, 0], sent[n:size, 1], sent[n:size, 2] = self._parts.rows.spare_row, 0, end
        sent[: len(sampling), 3], sent[len(sampling) : size, 3] = sampling, -1
        self._upload.send(size)
