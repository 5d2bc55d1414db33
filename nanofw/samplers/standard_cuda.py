"""Sampler `standard` on NVIDIA GPUs: rows' parameters on the device, sampling in Triton.

Gumbel-max on the same numbers as in `standard.py`, so it samples the same tokens, ties and
rounding aside. Rows whose logits are edited first (biases, bad words, penalties) go through
`sample`; steps without such rows can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import DeviceSampler, SampledTokens, SamplerConfig
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.transfer import to_device
from nanofw.samplers.device_parameters import DeviceParameters
from nanofw.samplers.edits import LogitEdits
from nanofw.samplers.shards import Shards


class CudaSampler(DeviceSampler):
    """Constructed as `CudaSampler(options, config)`."""

    variants: tuple[str, ...] = ("whole", "cut")

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self._device = config.device
        self._edits = LogitEdits(config)
        self._shards = Shards(config.vocab_size, config.communicator)
        self.shard_variants: tuple[str, ...] = ("whole",) if self._shards.are_split else ()
        self.parameters: DeviceParameters = DeviceParameters(config.max_num_seqs, config.device)

    @property
    def deferred_bytes(self) -> int:
        """Of the counts of penalties, until a row asks for them."""
        return self._edits.deferred_bytes

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self.parameters.add_row(new)
        self._edits.add_row(new)

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        self._edits.remove_row(row)

    def variant(self, rows: IntArray) -> str | None:
        """`cut` when top-k, top-p or min-p says anything for one of the rows, else `whole`.

        None when logits are edited first.
        """
        return None if self._edits.concern(rows) else self._variant(rows)

    def sync(self) -> None:
        """Bring to the device what `add_row` changed."""
        self.parameters.sync()

    def sample_on_device(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        *,
        sharded: bool = False,
    ) -> SampledTokens:
        """Sample one token for each of s rows. See the contract."""
        if sharded:
            return self._sample_shard(logits, rows, positions, variant)
        return self._sample(logits, rows, positions, variant, self.parameters.arrays)

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Apply biases, bans and penalties, in place."""
        return self._edits.apply(logits, rows, positions)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Apply the temperatures. The highest logit of each random line becomes 0."""
        self.sync()
        return self.parameters.scale(logits, self._sent(rows))

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        """Sample one token for each of s rows. See the contract."""
        assert not sharded, "can_shard never allows it: sample_on_device does"
        self.sync()
        arrays = self.parameters.scaled_arrays() if scaled else self.parameters.arrays
        sampled = self._sample(
            logits, self._sent(rows), self._sent(positions), self._variant(rows), arrays
        )
        self._edits.sampled(rows, sampled.token_ids)
        return sampled

    def _sample(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        arrays: RowSampling,
    ) -> SampledTokens:
        from nanofw.kernels.triton.cutoff import cutoffs_of
        from nanofw.kernels.triton.sampling import sample_tokens

        cutoffs = cutoffs_of(logits, rows, arrays) if variant == "cut" else None
        sampled = sample_tokens(logits, rows, arrays, positions, cutoffs=cutoffs)
        return SampledTokens(token_ids=sampled.token_ids, failed=sampled.failed)

    def _sample_shard(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        from nanofw.kernels.triton.sampling import sample_tokens

        assert variant in self.shard_variants
        sampled = sample_tokens(
            logits, rows, self.parameters.arrays, positions, vocab_offset=self._shards.tokens.start
        )
        ids = sampled.token_ids.view(torch.float32)  # the same bits: they are only moved
        parts = self._shards.all(torch.stack((sampled.scores, ids, sampled.failed.float())))
        best = self._shards.best(parts)
        failed = torch.stack([part[2] for part in parts]).amax(dim=0) > 0
        token_ids = best[1].contiguous().view(torch.int32).masked_fill(failed, 0)
        return SampledTokens(token_ids=token_ids, failed=failed)

    def _sent(self, numbers: IntArray) -> torch.Tensor:
        return to_device(numbers.astype(np.int64), self._device)

    def _variant(self, rows: IntArray) -> str:
        return self.variants[self.parameters.any_cut(rows)]
