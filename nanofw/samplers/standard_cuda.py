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
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SampledTokens, SamplerConfig
from nanofw.kernels.transfer import to_device
from nanofw.samplers.device_parameters import DeviceParameters
from nanofw.samplers.edits import LogitEdits
from nanofw.samplers.shards import Shards


class CudaSampler:
    """Constructed as `CudaSampler(options, config)`. A `DeviceSampler`."""

    variants: tuple[str, ...] = ("whole", "cut")

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        self._device = config.device
        self._edits = LogitEdits(config)
        self._shards = Shards(config.vocab_size, config.communicator)
        self.shard_variants: tuple[str, ...] = ("whole",) if self._shards.are_split else ()
        self.parameters = DeviceParameters(config.max_num_seqs, config.device)

    @property
    def deferred_bytes(self) -> int:
        """Of the counts of penalties, until a row asks for them."""
        return self._edits.deferred_bytes

    def check(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Every parameter is supported."""

    def add(self, new: NewRow) -> None:
        """A request entered a row."""
        self.parameters.add(new)
        self._edits.add(new)

    def remove(self, row: int) -> None:
        """The row is empty."""
        self._edits.remove(row)

    def variant(self, rows: IntArray) -> str | None:
        """`cut` when top-k, top-p or min-p says anything for one of the rows, else `whole`.

        None when logits are edited first.
        """
        return None if self._edits.concern(rows) else self._variant(rows)

    def sync(self) -> None:
        """Bring to the device what `add` changed."""
        self.parameters.sync()

    def sample_on_device(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Sample one token for each of s rows. See the contract."""
        from nanofw.kernels.triton.cutoff import cutoffs_of
        from nanofw.kernels.triton.sampling import sample_tokens

        arrays, cutoffs = self.parameters.arrays, None
        if variant == "cut":
            cutoffs = cutoffs_of(logits, rows, arrays)
        sampled = sample_tokens(logits, rows, arrays, positions, cutoffs=cutoffs)
        return SampledTokens(token_ids=sampled.token_ids, failed=sampled.failed)

    def sample_shard_on_device(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Sample one token for each of s rows from the ranks' parts. See the contract."""
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

    def sample(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> SampledTokens:
        """Sample one token for each of s rows. See the contract."""
        self.sync()
        self._edits.apply(logits, rows, positions)
        sampled = self.sample_on_device(
            logits, self._sent(rows), self._sent(positions), self._variant(rows)
        )
        self._edits.sampled(rows, sampled.token_ids)
        return sampled

    def _sent(self, numbers: IntArray) -> torch.Tensor:
        return to_device(numbers.astype(np.int64), self._device)

    def _variant(self, rows: IntArray) -> str:
        return self.variants[self.parameters.any_cut(rows)]
