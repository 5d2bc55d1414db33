"""One rank's part of a run: weights, KV pool, rows; a forward pass and a draw."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.attention_backend import (
    AttentionBackend,
    AttentionConfig,
    ForwardBatch,
)
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.logits_processor import HearsSampledTokens, LogitsProcessor
from nanofw.contracts.model import Model
from nanofw.contracts.model_spec import heads_of_rank, vocabulary_of_rank
from nanofw.contracts.plan import HostMasks, NewRow, StepPlan
from nanofw.contracts.requests import Request
from nanofw.contracts.sampler import (
    DefersMemory,
    DeviceSampler,
    SampledTokens,
    Sampler,
    SamplerConfig,
    ShardDeviceSampler,
    ShardSampler,
)
from nanofw.kernels.linear import padded_rows
from nanofw.kernels.sampling import forbid
from nanofw.kernels.transfer import to_device
from nanofw.plugins import Component
from nanofw.runtime.batch import StepBatch, make_batch
from nanofw.runtime.graphs.capture import GraphParts, Recorder
from nanofw.runtime.graphs.step import StepGraphs
from nanofw.runtime.logprobs import LogprobRows, PromptTokens
from nanofw.runtime.rows import RowState
from nanofw.runtime.weights import Checkpoint, open_checkpoint, settle_ties

logger = logging.getLogger(__name__)

MAX_CPU_TOKENS = 1024
"""More tokens at once only make activations that leave the caches and the heap."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a model is built with (`ModelContext`)."""

    device: torch.device
    dtype: torch.dtype
    communicator: Communicator
    max_model_len: int
    attention: AttentionBackend


@dataclass(slots=True)
class Processor:
    """A logits processor, its name, and the rows that it has something to do for."""

    name: str
    target: LogitsProcessor
    active: BoolArray


class Runner:
    """Carries out plans on one device. The pool must be allocated before the first of them.

    Attributes:
        backend, model, sampler: the chosen components.
        weight_bytes: of this rank's parameters.
        max_pass_tokens: tokens that the model computes at once; None: as many as come.
        pool: KV by layer, after `allocate`.
        graphs: of steps, after `capture`; None: every step runs eagerly.
    """

    def __init__(self, config: ExecutorConfig, communicator: Communicator) -> None:
        self._config, self._communicator = config, communicator
        self.device = torch.device(config.device)
        self._tokens = vocabulary_of_rank(
            config.spec.vocab_size, communicator.rank, communicator.size
        )
        self.dtype = getattr(torch, config.spec.dtype)
        self.max_pass_tokens = MAX_CPU_TOKENS if self.device.type == "cpu" else None
        checkpoint = open_checkpoint(Path(config.spec.path))
        if checkpoint.note and communicator.rank == 0:
            logger.warning("%s", checkpoint.note)
        self.backend: AttentionBackend = self._make("attention_backend", self._attention_config())
        sampler_config = self._sampler_config()
        self.sampler: Sampler = self._make("sampler", sampler_config)
        self.processors = [
            Processor(
                component.name,
                component.load()(component.options, sampler_config),
                np.zeros(config.max_num_seqs, np.bool_),
            )
            for component in config.components.get("logits_processor", ())
        ]
        self.weight_bytes = 0
        self.model = self._load_model(checkpoint)
        self.pool: list[Any] = []
        self.graphs: StepGraphs | None = None
        self._logprobs = LogprobRows(config.max_num_seqs, config.spec.vocab_size)
        self._device_sampler = self.sampler if isinstance(self.sampler, DeviceSampler) else None
        blocks_per_row = -(-config.max_model_len // config.block_size) + 1
        self._rows = RowState(  # one more, for the padded lines of captured steps
            config.max_num_seqs + 1, config.max_model_len + 1, blocks_per_row, self.device
        )

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool; what was there before is given back first."""
        self.pool = []
        self.pool = self.backend.allocate(num_blocks)

    def capture(self, recorder: Recorder, prefill_tokens: int = 0) -> None:
        """Record steps of every bucket. The pool is final from here on.

        Args:
            prefill_tokens: of the largest step with prefill to record; 0: decode steps alone.
        """
        config, spec = self._config, self._config.spec
        hidden = torch.zeros(
            config.max_num_seqs, spec.hidden_size, dtype=self.dtype, device=self.device
        )
        parts = GraphParts(
            self.model, self.backend, self.sampler, self._rows, self.pool, config.block_size,
            self._draw_on_device, hidden,
        )  # fmt: skip
        self.graphs = StepGraphs(parts, config.max_num_seqs, prefill_tokens, recorder)

    @property
    def deferred_bytes(self) -> int:
        """Device memory that sampler and processors may still allocate, when requests ask."""
        parts = [self.sampler, *(processor.target for processor in self.processors)]
        return sum(part.deferred_bytes for part in parts if isinstance(part, DefersMemory))

    def check(self, request: Request) -> None:
        """Raise ValueError when sampling parameters or processors' arguments are not possible."""
        self.sampler.check(request.sampling, self._config.spec.vocab_size)
        for processor in self.processors:
            try:
                processor.target.check(request.arguments.get(processor.name))
            except ValueError as error:
                raise ValueError(f"logits processor {processor.name}: {error}") from error

    def apply(self, plan: StepPlan) -> None:
        """Bring rows, tables and pool to where the plan starts from: removals first."""
        for row in plan.removed:
            self._remove(int(row))
        for new in plan.new:
            self._add(new)
        self._rows.apply(plan)
        if len(plan.copies):
            copies = to_device(plan.copies.astype(np.int64), self.device)
            self.backend.copy_blocks(self.pool, copies)

    def forward(self, plan: StepPlan) -> tuple[StepBatch, torch.Tensor]:
        """Run the model over an applied plan; hidden states [s, hidden] of the rows that sample."""
        if self.graphs is not None:
            has_prefill = plan.num_decodes < len(plan.rows)
            asks_prompts = has_prefill and self._logprobs.ask_for_prompts(plan)
            replayed = self.graphs.forward(plan, asks_prompts=asks_prompts)
            if replayed is not None:
                return replayed
        batch = make_batch(
            plan, self._rows, self._config.block_size, self.device, self.max_pass_tokens
        )
        lengths = [int(one.host_query_lens.sum()) for one in batch.passes]  # without padding
        wanted = self._logprobs.prompt_tokens(plan, lengths)
        if wanted is not None:
            return batch, self._forward_with_prompts(batch, wanted)
        hidden = [self._forward(one) for one in batch.passes]
        return batch, hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def _forward(self, one: ForwardBatch) -> torch.Tensor:
        one.attention = self.backend.prepare(one)
        return self.model.forward(one, self.pool)

    def _forward_with_prompts(self, batch: StepBatch, wanted: PromptTokens) -> torch.Tensor:
        """Hidden states of the rows that sample; those of prompts become log probabilities."""
        hidden: list[torch.Tensor] = []
        of_prompts: list[torch.Tensor] = []
        for one, indices in zip(batch.passes, wanted.indices, strict=True):
            num_sampled = len(one.logits_indices)
            extra = to_device(indices, self.device)
            one.logits_indices = torch.cat((one.logits_indices, extra))
            states = self._forward(one)
            hidden.append(states[:num_sampled])
            of_prompts.append(states[num_sampled:])
        rows, positions = to_device(np.stack((wanted.rows, wanted.positions)), self.device)
        batch.prompt_logprobs = self._logprobs.of_prompts(
            wanted,
            torch.cat(of_prompts),
            self._rows.token_ids[rows, positions],
            lambda states: self.logits(states).float(),
        )
        return torch.cat(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, vocab] of [s, hidden], gathered from all ranks, in the model's type."""
        vocab_size = self._config.spec.vocab_size
        if not len(hidden):
            return torch.empty((0, vocab_size), dtype=self.dtype, device=self.device)
        num_rows = len(hidden)
        if self.device.type == "cpu":
            hidden = functional.pad(hidden, (0, 0, 0, padded_rows(num_rows) - num_rows))
        logits = self._communicator.all_gather(self.model.logits(hidden)[:num_rows], dim=-1)
        return logits[:, :vocab_size]

    def sample(
        self, batch: StepBatch, hidden: torch.Tensor, masks: HostMasks | None, host_rows: IntArray
    ) -> SampledTokens:
        """Draw a token for each row of the batch that samples, and keep it for the next step."""
        asks = self._logprobs.lines(batch.rows)
        active = [p for p in self.processors if p.active[batch.rows].any()]
        is_changed = bool(active) or masks is not None
        variant = self._variant(batch.rows)
        if batch.graph_size and self.graphs and variant and asks is None and not is_changed:
            return self.graphs.draw(batch, variant)
        if self._communicator.size > 1 and asks is None and not is_changed:
            sampled = self._draw_on_shards(hidden, batch, variant)
            if sampled is not None:
                self._rows.append(batch.device_rows, batch.device_positions, sampled.token_ids)
                return sampled
        logits = self.logits(hidden)
        as_made = None if asks is None else logits[to_device(asks, self.device)].float()  # a copy
        if is_changed or variant is None:
            logits = logits.float()
        failed = None
        if is_changed:
            failed = ~torch.isfinite(logits.amax(dim=-1))  # what follows may hide it
            logits = self._change(logits, batch.rows, active, masks, host_rows)
        sampled = self._draw(logits, batch, variant)
        if failed is not None:
            sampled.failed = sampled.failed | failed
        self._rows.append(batch.device_rows, batch.device_positions, sampled.token_ids)
        for processor in active:
            if isinstance(processor.target, HearsSampledTokens):
                processor.target.on_sampled(batch.rows, sampled.token_ids)
        if asks is not None and as_made is not None:
            tokens = sampled.token_ids[to_device(asks, self.device)]
            batch.logprobs = self._logprobs.of_drawn(batch.rows[asks], as_made, tokens)
        return sampled

    def _change(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        active: list[Processor],
        masks: HostMasks | None,
        host_rows: IntArray,
    ) -> torch.Tensor:
        """Logits after the processors of the device, in YAML order, and what the host forbids."""
        for processor in active:
            logits = processor.target.apply(logits, rows)
        if masks is not None:
            lines = to_device(_lines_of(host_rows, rows), self.device)
            forbid(logits, lines, to_device(masks.bits, self.device))
        return logits

    def _variant(self, rows: IntArray) -> str | None:
        """The draw that the device can do alone for these rows, or None."""
        if self._device_sampler is None:
            return None
        self._device_sampler.sync()
        return self._device_sampler.variant(rows)

    def _draw(self, logits: torch.Tensor, batch: StepBatch, variant: str | None) -> SampledTokens:
        if variant is None or self._device_sampler is None:
            return self.sampler.sample(logits, batch.rows, batch.positions)
        return self._device_sampler.sample_on_device(
            logits, batch.device_rows, batch.device_positions, variant
        )

    def _draw_on_device(
        self, hidden: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Logits and draw with nothing from the host."""
        sampler = self._device_sampler
        assert sampler is not None
        if isinstance(sampler, ShardDeviceSampler) and variant in sampler.shard_variants:
            return sampler.sample_shard_on_device(
                self._local_logits(hidden), rows, positions, variant
            )
        return sampler.sample_on_device(self.logits(hidden), rows, positions, variant)

    def _draw_on_shards(
        self, hidden: torch.Tensor, batch: StepBatch, variant: str | None
    ) -> SampledTokens | None:
        """A draw for which the ranks need not gather the logits; None: they must."""
        if not len(hidden):
            return None
        if variant is not None:
            rows, positions = batch.device_rows, batch.device_positions
            return self._draw_on_device(hidden, rows, positions, variant)
        if isinstance(self.sampler, ShardSampler) and self.sampler.on_shards(batch.rows):
            logits = self._local_logits(hidden).float()
            return self.sampler.sample_shard(logits, batch.rows, batch.positions)
        return None

    def _local_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, tokens of this rank] of [s, hidden], without padding."""
        return self.model.logits(hidden)[:, : len(self._tokens)]

    def _add(self, new: NewRow) -> None:
        self.sampler.add(new)
        self._logprobs.add(new)
        for processor in self.processors:
            processor.active[new.row] = processor.target.add(new)

    def _remove(self, row: int) -> None:
        self.sampler.remove(row)
        for processor in self.processors:
            processor.target.remove(row)
            processor.active[row] = False

    def _make(self, kind: str, facts: Any) -> Any:
        component: Component = self._config.components[kind]
        return component.load()(component.options, facts)

    def _load_model(self, checkpoint: Checkpoint) -> Model:
        build: Callable[..., Model] = self._config.components["model"].load()
        context = Context(
            self.device, self.dtype, self._communicator, self._config.max_model_len, self.backend
        )
        model = build(settle_ties(self._config.spec, checkpoint), context)
        parameters = getattr(model, "parameters", None)
        self.weight_bytes = sum(p.nbytes for p in parameters()) if parameters else 0
        model.load(checkpoint.tensors())
        return model

    def _attention_config(self) -> AttentionConfig:
        config, spec = self._config, self._config.spec
        num_heads, num_kv_heads = heads_of_rank(
            spec.num_heads, spec.num_kv_heads, self._communicator.size
        )
        return AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=spec.head_dim,
            num_layers=spec.num_layers,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            dtype=self.dtype,
            device=self.device,
            sliding_windows=spec.sliding_windows,
        )

    def _sampler_config(self) -> SamplerConfig:
        return SamplerConfig(
            vocab_size=self._config.spec.vocab_size,
            max_num_seqs=self._config.max_num_seqs,
            max_model_len=self._config.max_model_len,
            device=self.device,
            eos_token_ids=self._config.spec.eos_token_ids,
            communicator=self._communicator,
        )


def _lines_of(host_rows: IntArray, rows: IntArray) -> np.ndarray:
    """int64[h], where the host rows are among the rows that sample."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, host_rows, sorter=order)].astype(np.int64)
