"""From the hidden states of a step to its sampled tokens: logits, edits, the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from nanofw.contracts.arrays import IntArray, LongArray
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model import Model
from nanofw.contracts.model_spec import vocabulary_of_rank
from nanofw.contracts.plan import HostMasks, NewRow
from nanofw.contracts.sampler import SampledTokens
from nanofw.kernels.linear import padded_rows
from nanofw.kernels.sampling import forbid
from nanofw.kernels.transfer import to_device
from nanofw.plugin_calls import WrongAnswer
from nanofw.runtime.batch import RowState, StepBatch
from nanofw.runtime.logprobs import LogprobRows
from nanofw.runtime.sampling_plugins import Processor, SamplingPlugins

if TYPE_CHECKING:
    from nanofw.runtime.graphs.step import StepGraphs


@dataclass(frozen=True, slots=True)
class StepEdits:
    """What changes the logits of a step: processors with work to do, and what the host forbids."""

    processors: list[Processor]
    masks: HostMasks | None
    host_rows: IntArray

    def __bool__(self) -> bool:
        return bool(self.processors) or self.masks is not None


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
        self.logprobs: LogprobRows = LogprobRows(config.max_num_seqs, self._vocab_size)
        self._shard_variants = plugins.shard_variants

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
        own = self._logits_of_rank(hidden)[:num_rows]
        return self._communicator.all_gather(own, dim=-1)[:, : self._vocab_size]

    def _logits_of_rank(self, hidden: torch.Tensor) -> torch.Tensor:
        """The model's answer: at least a logit for each of this rank's tokens."""
        logits: object = self._model.logits(hidden)
        if (
            isinstance(logits, torch.Tensor)
            and logits.ndim == 2
            and len(logits) == len(hidden)
            and logits.shape[1] >= self._num_own_tokens
            and logits.is_floating_point()
            and logits.device == hidden.device
        ):
            return logits
        wanted = f"floating[{len(hidden)}, {self._num_own_tokens} or more] on {hidden.device}"
        raise WrongAnswer(self._model, "logits", logits, wanted)

    def sample(
        self, batch: StepBatch, hidden: torch.Tensor, masks: HostMasks | None, host_rows: IntArray
    ) -> SampledTokens:
        """Sample a token for each row of the batch that samples, and keep it for the next step."""
        asking = self.logprobs.asking(batch.rows) if self.logprobs.are_asked else None
        edits = StepEdits(self._plugins.active(batch.rows), masks, host_rows)
        is_plain = asking is None and not edits
        variant = self._plugins.variant(batch.rows)
        if is_plain and batch.graph_size and self.graphs is not None and variant is not None:
            return self.graphs.sample(batch, variant)
        sampled = self._sample_on_shards(batch, hidden, variant) if is_plain else None
        if sampled is None:
            logits = self.logits(hidden)
            as_made = None if asking is None else self._chosen(logits, asking).float()  # a copy
            self._forbid_padding(logits)
            sampled = self._sample_from(logits, batch, edits, variant)
            if asking is not None and as_made is not None:
                tokens = self._chosen(sampled.token_ids, asking)
                batch.logprobs = self.logprobs.of_sampled(batch.rows[asking], as_made, tokens)
        self._rows.append(batch.device_rows, batch.device_positions, sampled.token_ids)
        return sampled

    def sample_on_device(
        self, hidden: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Logits and samples with nothing from the host, from int64[s] rows and positions."""
        sharded = variant in self._shard_variants
        logits = self._own_logits(hidden) if sharded else self._forbid_padding(self.logits(hidden))
        return self._plugins.sample_on_device(logits, rows, positions, variant, sharded=sharded)

    def _sample_from(
        self, logits: torch.Tensor, batch: StepBatch, edits: StepEdits, variant: str | None
    ) -> SampledTokens:
        """Sample from [s, vocab] logits: processors, masks of the host, the sampler.

        Where a processor acts after the temperatures, these are applied for all rows.
        """
        plugins, rows, positions = self._plugins, batch.rows, batch.positions
        scaled = [processor for processor in edits.processors if processor.is_scaled]
        failed = None
        if edits:
            logits = logits.float()
            failed = ~torch.isfinite(logits.amax(dim=-1))  # what follows may hide it
            logits = self._processed(logits, batch, edits)
        if variant is not None and not scaled:
            sampled = plugins.sample_on_device(
                logits, batch.device_rows, batch.device_positions, variant
            )
        else:
            logits = plugins.edit(logits.float(), rows, positions)
            if scaled:
                logits = plugins.scale(logits, rows)
            for processor in scaled:
                logits = processor.apply(logits, rows, positions)
            sampled = plugins.sample(logits, rows, positions, scaled=bool(scaled))
        if failed is not None:
            sampled.failed = sampled.failed | failed
        for processor in edits.processors:
            processor.sampled(rows, sampled.token_ids)
        return sampled

    def _processed(self, logits: torch.Tensor, batch: StepBatch, edits: StepEdits) -> torch.Tensor:
        """float32[s, vocab] after processors of the stage "logits" and what the host forbids."""
        for processor in edits.processors:
            if not processor.is_scaled:
                logits = processor.apply(logits, batch.rows, batch.positions)
        if edits.masks is not None:
            indices = to_device(_indices_of(edits.host_rows, batch.rows), self._device)
            forbid(logits, indices, to_device(edits.masks.bits, self._device))
        return logits

    def _sample_on_shards(
        self, batch: StepBatch, hidden: torch.Tensor, variant: str | None
    ) -> SampledTokens | None:
        """Sample where the ranks need not gather the logits; None: they must."""
        if self._communicator.size == 1 or not len(hidden):
            return None
        if variant is not None:
            rows, positions = batch.device_rows, batch.device_positions
            return self.sample_on_device(hidden, rows, positions, variant)
        if self._plugins.can_shard(batch.rows):
            logits = self._own_logits(hidden).float()
            return self._plugins.sample(logits, batch.rows, batch.positions, sharded=True)
        return None

    def _own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, tokens of this rank] of [s, hidden]; those that only pad are forbidden."""
        logits = self._logits_of_rank(hidden)[:, : self._num_own_tokens]
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
