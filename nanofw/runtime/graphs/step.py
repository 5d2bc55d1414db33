"""Steps as CUDA graphs.

A step is two replays. The first gathers the step's inputs from the rows on the device and runs
the model up to the hidden states of the rows that sample; there is one graph for each batch size
of decode steps (`DecodeGraphs`), and one for each number of tokens of steps with prefill
(`PrefillGraphs`). The second, one for each batch size and variant of the sampler, computes the
logits, samples and appends the tokens to the rows; it serves both. Steps that sample with the host
(masks, logits processors, log probabilities) replay the first and go on eagerly.

The host sends a few numbers of each row and nothing else. Rows that fill a bucket up are
padding: no context, slot -1, the spare row after all others.

All graphs share one memory pool; the largest are captured first, so that the others fit in what
they took.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.sampler import DeviceSampler, SampledTokens
from nanofw.kernels.decode_inputs import DecodeInputs, gather_decode_inputs
from nanofw.runtime.batch import StepBatch
from nanofw.runtime.graphs.capture import Capturer, GraphParts, Run, Upload
from nanofw.runtime.graphs.prefill import PrefillGraphs
from nanofw.runtime.graphs.sizes import buckets, telling_rows, telling_sizes, token_buckets


class StepGraphs:
    """All graphs of a run, captured when made. One step at a time: the buffers belong to the last
    one submitted.

    Attributes:
        decode, prefill: the graphs of either kind of step; no prefill: those run eagerly.
        hits: steps that were replayed, by kind.
        misses: steps that were not, by reason.
    """

    def __init__(
        self, parts: GraphParts, max_num_seqs: int, prefill_tokens: int, capturer: Capturer
    ) -> None:
        """`prefill_tokens`: of the largest step with prefill; 0: none is captured."""
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        width = parts.rows.block_tables.shape[1]
        inputs = DecodeInputs.allocate(max_num_seqs, width, parts.hidden.device)
        sizes = buckets(max_num_seqs)
        tokens = token_buckets(prefill_tokens)
        if tokens and capturer.is_dry:
            tokens = telling_sizes(tokens, sizes)
        self.prefill: PrefillGraphs | None = (
            PrefillGraphs(parts, inputs, sizes, tokens, capturer) if tokens else None
        )
        if capturer.is_dry:
            sizes = telling_rows(sizes)
        self.decode: DecodeGraphs = DecodeGraphs(parts, inputs, sizes, capturer)

    @property
    def counts(self) -> dict[str, int]:
        """Steps replayed, how many of them had prefill, and the others by reason."""
        with_prefill = {"replayed with prefill": self.hits["prefill"]} if self.prefill else {}
        return {"replayed": self.hits.total(), **with_prefill, **self.misses}

    def forward(
        self, plan: StepPlan, *, asks_prompts: bool, has_arguments: bool = False
    ) -> tuple[StepBatch, torch.Tensor] | None:
        """Replay the forward pass of a plan that was applied to the rows.

        Args:
            asks_prompts: hidden states of other tokens than those that sample are wanted.
            has_arguments: rows carry arguments that the model has to see.

        Returns:
            The batch and the hidden states [s, hidden], valid until the next step; None when no
            graph serves the plan, which is counted.
        """
        n = len(plan.rows)
        if has_arguments:
            kind, miss = "prefill", "arguments for the model"
        elif n and plan.num_decodes == n and plan.samples.all():
            kind, miss = "decode", self.decode.miss_reason(plan)
        elif self.prefill is None or not n:
            kind, miss = "prefill", "prefill"
        else:
            kind = "prefill"
            miss = (
                "log probabilities of prompts" if asks_prompts else self.prefill.miss_reason(plan)
            )
        if miss is not None:
            self.misses[miss] += 1
            return None
        self.hits[kind] += 1
        if kind == "decode":
            return self.decode.forward(plan)
        assert self.prefill is not None
        return self.prefill.forward(plan)

    def sample(self, batch: StepBatch, variant: str) -> SampledTokens:
        """Replay the sampling after `forward`, with a variant of the sampler."""
        return self.decode.sample(batch, variant)


@dataclass(slots=True)
class _DecodeBucket:
    """The graphs of one batch size; sampling and its results by variant of the sampler."""

    inputs: DecodeInputs
    forward: Run
    sample: dict[str, Run]
    sampled: dict[str, SampledTokens]


class DecodeGraphs:
    """Steps of one token a row, where all rows sample; and the sampling of any step.

    Args:
        inputs: what steps read, of as many rows as the largest batch.
        sizes: the batch sizes, rising.
    """

    def __init__(
        self, parts: GraphParts, inputs: DecodeInputs, sizes: list[int], capturer: Capturer
    ) -> None:
        self.sizes = sizes
        self._parts, self._inputs = parts, inputs
        device = parts.hidden.device
        self._upload = Upload(sizes[-1], 2, device)
        self._starts = torch.arange(sizes[-1] + 1, dtype=torch.int32, device=device)
        self._indices = torch.arange(sizes[-1], device=device)
        self._fill([], [], sizes[-1])
        self._telling = telling_rows(sizes)
        self._buckets = {size: self._capture(size, capturer) for size in reversed(sizes)}

    def miss_reason(self, plan: StepPlan) -> str | None:
        """Why no graph serves a plan in which every row decodes, or None."""
        return "more rows than the largest graph" if len(plan.rows) > self.sizes[-1] else None

    def forward(self, plan: StepPlan) -> tuple[StepBatch, torch.Tensor]:
        """Replay the model. See `StepGraphs.forward`."""
        n = len(plan.rows)
        size = self.sizes[int(np.searchsorted(self.sizes, n))]
        self._fill(plan.rows, plan.starts, size)
        bucket = self._buckets[size]
        bucket.forward()
        batch = StepBatch(
            micro_batches=[],
            rows=plan.rows,
            positions=plan.starts + 1,
            device_rows=bucket.inputs.rows[:n],
            device_positions=bucket.inputs.next_positions[:n],
            graph_size=size,
        )
        return batch, self._parts.hidden[:n]

    def sample(self, batch: StepBatch, variant: str) -> SampledTokens:
        """Replay the sampling after a forward pass of either kind."""
        bucket, n = self._buckets[batch.graph_size], len(batch.rows)
        bucket.sample[variant]()
        sampled = bucket.sampled[variant]
        return SampledTokens(token_ids=sampled.token_ids[:n], failed=sampled.failed[:n])

    def _capture(self, size: int, capturer: Capturer) -> _DecodeBucket:
        inputs = self._inputs.first(size)
        is_known = size not in self._telling
        forward = capturer.capture(lambda: self._run(inputs, size), is_known=is_known)
        bucket = _DecodeBucket(inputs, forward, {}, {})
        sampler = self._parts.sampler
        for variant in sampler.variants if isinstance(sampler, DeviceSampler) else ():

            def run(variant: str = variant) -> None:
                bucket.sampled[variant] = self._sample(inputs, size, variant)

            bucket.sample[variant] = capturer.capture(run, is_known=is_known)
        return bucket

    def _run(self, inputs: DecodeInputs, size: int) -> None:
        parts = self._parts
        gather_decode_inputs(
            self._upload.on_device[:size], parts.rows.token_ids, parts.rows.block_tables,
            parts.block_size, inputs,
        )  # fmt: skip
        batch = self._batch(inputs, size)
        batch.attention = parts.backend.prepare(batch)
        parts.hidden[:size].copy_(parts.model.forward(batch, parts.pool))

    def _sample(self, inputs: DecodeInputs, size: int, variant: str) -> SampledTokens:
        parts = self._parts
        sampled = parts.sample(parts.hidden[:size], inputs.rows, inputs.next_positions, variant)
        parts.rows.append(inputs.rows, inputs.next_positions, sampled.token_ids)
        return sampled

    def _batch(self, inputs: DecodeInputs, size: int) -> ForwardBatch:
        return ForwardBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            block_tables=inputs.block_tables,
            query_starts=self._starts[: size + 1],
            context_lens=inputs.context_lens,
            host_query_lens=np.ones(size, np.int32),
            host_context_lens=np.full(size, self._parts.longest, np.int32),
            num_decodes=size,
            logits_indices=self._indices[:size],
            max_chunks=0,
        )

    def _fill(self, rows: Any, starts: Any, size: int) -> None:
        """Send the rows of a step, padded to `size`."""
        sent = self._upload.next()
        n = len(rows)
        sent[:n, 0], sent[:n, 1] = rows, starts
        sent[n:size, 0], sent[n:size, 1] = self._parts.rows.spare_row, -1
        self._upload.send(size)
