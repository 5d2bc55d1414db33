"""From the hidden states of a step to its sampled tokens: logits, edits, the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.logits_processor import HearsSampledTokens, LogitsProcessor
from nanofw.contracts.model import Model
from nanofw.contracts.model_spec import vocabulary_of_rank
from nanofw.contracts.plan import HostMasks, NewRow
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
from nanofw.runtime.batch import StepBatch
from nanofw.runtime.logprobs import LogprobRows
from nanofw.runtime.rows import RowState

if TYPE_CHECKING:
    from nanofw.runtime.graphs.step import StepGraphs


@dataclass(slots=True)
class Processor:
    """A logits processor, its name, and the rows that it has something to do for."""

    name: str
    target: LogitsProcessor
    active: BoolArray


@dataclass(frozen=True, slots=True)
class StepEdits:
    """What changes the logits of a step: processors with work to do, and what the host forbids."""

    processors: list[Processor]
    masks: HostMasks | None
    host_rows: IntArray

    def __bool__(self) -> bool:
        return bool(self.processors) or self.masks is not None


class SamplingPlugins:
    """The sampler and the logits processors of the device, in YAML order."""

    def __init__(
        self, config: ExecutorConfig, communicator: Communicator, device: torch.device
    ) -> None:
        sampler_config = SamplerConfig(
            vocab_size=config.spec.vocab_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            device=device,
            eos_token_ids=config.spec.eos_token_ids,
            communicator=communicator,
        )
        chosen = config.components["sampler"]
        self.sampler: Sampler = chosen.load()(chosen.options, sampler_config)
        self.processors = [
            Processor(
                component.name,
                component.load()(component.options, sampler_config),
                np.zeros(config.max_num_seqs, np.bool_),
            )
            for component in config.components.get("logits_processor", ())
        ]
        self._vocab_size = config.spec.vocab_size

    @property
    def deferred_bytes(self) -> int:
        """Device memory that they may still allocate, when requests ask."""
        parts = [self.sampler, *(processor.target for processor in self.processors)]
        return sum(part.deferred_bytes for part in parts if isinstance(part, DefersMemory))

    def check(self, request: Request) -> None:
        """Raise ValueError when sampling parameters or processors' arguments are not possible."""
        self.sampler.check(request.sampling, self._vocab_size)
        for processor in self.processors:
            try:
                processor.target.check(request.arguments.get(processor.name))
            except ValueError as error:
                raise ValueError(f"logits processor {processor.name}: {error}") from error

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self.sampler.add(new)
        for processor in self.processors:
            processor.active[new.row] = processor.target.add(new)

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        self.sampler.remove(row)
        for processor in self.processors:
            processor.target.remove(row)
            processor.active[row] = False

    def active(self, rows: IntArray) -> list[Processor]:
        """The processors that have something to do for int32[s] rows."""
        return [processor for processor in self.processors if processor.active[rows].any()]


class StepSampler:
    """Samples a token for each row of a step, and keeps it where the next step reads it.

    Attributes:
        graphs: of steps; None: nothing is replayed.
        logprobs: which rows ask for log probabilities.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        communicator: Communicator,
        plugins: SamplingPlugins,
        model: Model,
        rows: RowState,
    ) -> None:
        self._communicator, self._plugins = communicator, plugins
        self._model, self._rows = model, rows
        self._device = torch.device(config.device)
        self._dtype = getattr(torch, config.spec.dtype)
        self._vocab_size = config.spec.vocab_size
        own = vocabulary_of_rank(self._vocab_size, communicator.rank, communicator.size)
        self._num_own_tokens = len(own)
        self._num_sampled_ids = config.spec.num_sampled_ids
        self._num_own_sampled_ids = max(0, min(len(own), self._num_sampled_ids - own.start))
        self.graphs: StepGraphs | None = None
        self.logprobs = LogprobRows(config.max_num_seqs, self._vocab_size)
        self._sampler = plugins.sampler
        self._device_sampler = self._sampler if isinstance(self._sampler, DeviceSampler) else None

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self._plugins.add_row(new)
        self.logprobs.add_row(new)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, vocab] of [s, hidden], gathered from all ranks, in the model's type."""
        if not len(hidden):
            return torch.empty((0, self._vocab_size), dtype=self._dtype, device=self._device)
        num_rows = len(hidden)
        if self._device.type == "cpu":
            hidden = functional.pad(hidden, (0, 0, 0, padded_rows(num_rows) - num_rows))
        logits = self._communicator.all_gather(self._model.logits(hidden)[:num_rows], dim=-1)
        return logits[:, : self._vocab_size]

    def sample(
        self, batch: StepBatch, hidden: torch.Tensor, masks: HostMasks | None, host_rows: IntArray
    ) -> SampledTokens:
        """Sample a token for each row of the batch that samples, and keep it for the next step."""
        asking = self.logprobs.asking(batch.rows)
        edits = StepEdits(self._plugins.active(batch.rows), masks, host_rows)
        is_plain = asking is None and not edits
        variant = self._variant(batch.rows)
        if is_plain and batch.graph_size and self.graphs is not None and variant is not None:
            return self.graphs.sample(batch, variant)
        sampled = self._sample_on_shards(batch, hidden, variant) if is_plain else None
        if sampled is None:
            logits = self.logits(hidden)
            as_made = None if asking is None else self._chosen(logits, asking).float()  # a copy
            self._forbid_padding(logits)
            if edits:
                sampled = self._sample_edited(logits, batch, edits, variant)
            else:
                sampled = self._sample_from(logits, batch, variant)
            if asking is not None and as_made is not None:
                tokens = self._chosen(sampled.token_ids, asking)
                batch.logprobs = self.logprobs.of_sampled(batch.rows[asking], as_made, tokens)
        self._rows.append(batch.device_rows, batch.device_positions, sampled.token_ids)
        return sampled

    def sample_on_device(
        self, hidden: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Logits and samples with nothing from the host, from int64[s] rows and positions."""
        sampler = self._device_sampler
        assert sampler is not None
        if isinstance(sampler, ShardDeviceSampler) and variant in sampler.shard_variants:
            return sampler.sample_shard_on_device(
                self._own_logits(hidden), rows, positions, variant
            )
        logits = self._forbid_padding(self.logits(hidden))
        return sampler.sample_on_device(logits, rows, positions, variant)

    def _variant(self, rows: IntArray) -> str | None:
        """The variant with which the device alone can sample these rows, or None."""
        if self._device_sampler is None:
            return None
        self._device_sampler.sync()
        return self._device_sampler.variant(rows)

    def _sample_from(
        self, logits: torch.Tensor, batch: StepBatch, variant: str | None
    ) -> SampledTokens:
        if variant is None or self._device_sampler is None:
            return self._sampler.sample(logits.float(), batch.rows, batch.positions)
        return self._device_sampler.sample_on_device(
            logits, batch.device_rows, batch.device_positions, variant
        )

    def _sample_edited(
        self,
        logits: torch.Tensor,
        batch: StepBatch,
        edits: StepEdits,
        variant: str | None,
    ) -> SampledTokens:
        """Sample after the processors of the device, in YAML order, and what the host forbids."""
        logits = logits.float()
        failed = ~torch.isfinite(logits.amax(dim=-1))  # what follows may hide it
        for processor in edits.processors:
            logits = processor.target.apply(logits, batch.rows)
        if edits.masks is not None:
            indices = to_device(_indices_of(edits.host_rows, batch.rows), self._device)
            forbid(logits, indices, to_device(edits.masks.bits, self._device))
        sampled = self._sample_from(logits, batch, variant)
        sampled.failed = sampled.failed | failed
        for processor in edits.processors:
            if isinstance(processor.target, HearsSampledTokens):
                processor.target.on_sampled(batch.rows, sampled.token_ids)
        return sampled

    def _sample_on_shards(
        self, batch: StepBatch, hidden: torch.Tensor, variant: str | None
    ) -> SampledTokens | None:
        """Sample where the ranks need not gather the logits; None: they must."""
        if self._communicator.size == 1 or not len(hidden):
            return None
        if variant is not None:
            rows, positions = batch.device_rows, batch.device_positions
            return self.sample_on_device(hidden, rows, positions, variant)
        if isinstance(self._sampler, ShardSampler) and self._sampler.on_shards(batch.rows):
            logits = self._own_logits(hidden).float()
            return self._sampler.sample_shard(logits, batch.rows, batch.positions)
        return None

    def _own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, tokens of this rank] of [s, hidden]; those that only pad are forbidden."""
        logits = self._model.logits(hidden)[:, : self._num_own_tokens]
        if self._num_own_sampled_ids < self._num_own_tokens:
            logits[:, self._num_own_sampled_ids :] = -torch.inf
        return logits

    def _forbid_padding(self, logits: torch.Tensor) -> torch.Tensor:
        """Set the logits of ids that the tokenizer does not have to -inf, in place."""
        if self._num_sampled_ids < self._vocab_size:
            logits[:, self._num_sampled_ids :] = -torch.inf
        return logits

    def _chosen(self, tensor: torch.Tensor, indices: LongArray) -> torch.Tensor:
        return tensor[to_device(indices, self._device)]


def _indices_of(host_rows: IntArray, rows: IntArray) -> LongArray:
    """int64[h], where the host rows are among the rows that sample."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, host_rows, sorter=order)].astype(np.int64)
