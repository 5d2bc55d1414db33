"""Sampler `standard`: every parameter of `SamplingParams`, from counter-based random numbers.

The order in which the parameters act, each on what the one before left (docs/sampling.md):

    logit_bias, bad_words, min_tokens     sums and bans of single logits
    repetition, frequency, presence       penalties
    temperature 0                         the highest logit wins
    temperature, min_p, top_k, top_p      else a sample of what is kept

A step looks for the highest logit of every row, which is all that greedy rows need. Rows that
sample from the whole vocabulary add Gumbel noise to it, a few rows at a time so that they stay in
the cache. Rows that keep a part of it take a short list of candidates first, and a longer one only
if the short list cannot tell what is kept. A parameter that no row of a step has costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SampledTokens, Sampler, SamplerConfig
from nanofw.kernels.dispatch import runs_triton
from nanofw.kernels.random import position_keys
from nanofw.kernels.sampling import (
    exponential_ratios,
    greedy,
    gumbel_max,
    gumbel_max_among,
    num_kept,
    ordered_candidates,
    total_weights,
)
from nanofw.kernels.transfer import to_device
from nanofw.samplers.edits import LogitEdits
from nanofw.samplers.parameters import Group, RowParameters
from nanofw.samplers.shards import Shards

_LINES_AT_ONCE = 8  # on a CPU
_CANDIDATES = (64, 1024)  # lengths of the lists that are tried before the whole vocabulary


@dataclass(slots=True)
class _Cut:
    """Lines with min-p, top-k or top-p. Shapes as in `Group`; logits float32[g, vocab]."""

    logits: torch.Tensor
    highest: torch.Tensor
    inverse_temperatures: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    keys: torch.Tensor
    totals: torch.Tensor | None = None

    def at(self, members: torch.Tensor) -> _Cut:
        """Only the given int64[m] lines."""
        return _Cut(
            self.logits[members], self.highest[members], self.inverse_temperatures[members],
            self.top_k[members], self.top_p[members], self.min_p[members], self.keys[members],
            None if self.totals is None else self.totals[members],
        )  # fmt: skip

    def sample(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample from the `count` best tokens; int64[g] tokens, bool[g] whether that was enough.

        It was when the kept set ends above the last candidate: then no token outside the list
        belongs to it.
        """
        if self.totals is None:
            self.totals = total_weights(self.logits, self.highest, self.inverse_temperatures)
        values, ids = ordered_candidates(self.logits, count)
        scale = self.inverse_temperatures.unsqueeze(1)
        weights = (values - self.highest.unsqueeze(1)).mul_(scale).exp_()
        kept = num_kept(weights, self.totals, self.top_k, self.top_p, self.min_p)
        last_kept = values.gather(1, kept.unsqueeze(1) - 1).squeeze(1)
        is_whole = (self.top_k == self.logits.shape[1]) & (self.min_p == 0)
        is_enough = is_whole | (self.top_k < count) | (weights[:, -1] < self.min_p)
        # A row that is not finite has failed, whatever is sampled.
        is_known = is_enough & (last_kept > values[:, -1]) | ~torch.isfinite(self.highest)
        return gumbel_max_among(weights, kept, self.keys, ids), is_known


class StandardSampler(Sampler):
    """Constructed as `StandardSampler(options, config)`."""

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self._vocab_size, self._device = config.vocab_size, config.device
        self._parameters = RowParameters(config.max_num_seqs, config.vocab_size, config.device)
        self._edits = LogitEdits(config)
        self._shards = Shards(config.vocab_size, config.communicator)
        self._token_ids = torch.arange(config.vocab_size, dtype=torch.int32, device=config.device)

    @property
    def deferred_bytes(self) -> int:
        """Of the counts of penalties, until a row asks for them."""
        return self._edits.deferred_bytes

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self._parameters.add_row(new)
        self._edits.add_row(new)

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        self._edits.remove_row(row)

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Apply biases, bans and penalties, in place."""
        return self._edits.apply(logits, rows, positions)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Apply the temperatures, in place. The highest logit of each random line becomes 0."""
        return self._parameters.scale(logits, rows)

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
        if sharded:
            return self._sample_shard(logits, rows, positions)
        token_ids, failed = self._sample(logits, rows, positions, scaled)
        self._edits.sampled(rows, token_ids)
        return SampledTokens(token_ids=token_ids, failed=failed)

    def can_shard(self, rows: IntArray) -> bool:
        """Greedy rows and those that sample from the whole vocabulary."""
        if not self._shards.are_split or self._edits.concern(rows):
            return False
        return self._parameters.groups(rows).cut is None

    def _sample_shard(
        self, logits: torch.Tensor, rows: IntArray, positions: IntArray
    ) -> SampledTokens:
        first = self._shards.tokens.start
        local_highest, best = greedy(logits)
        found = self._shards.all(torch.stack((local_highest.double(), best.double() + first)))
        highest = torch.stack([part[0] for part in found]).amax(dim=0).float()  # NaN wins
        failed = ~torch.isfinite(highest)
        token_ids = self._shards.best(found)[1].long()
        group = self._parameters.groups(rows).whole
        if group is not None:
            lines: slice | torch.Tensor = slice(None) if group.lines is None else group.lines
            token_ids[lines] = self._sample_whole_on_shards(logits, highest, group, positions)
        return SampledTokens(
            token_ids=token_ids.masked_fill_(failed, 0).to(torch.int32), failed=failed
        )

    def _sample_whole_on_shards(
        self, logits: torch.Tensor, highest: torch.Tensor, group: Group, positions: IntArray
    ) -> torch.Tensor:
        """int64[g] tokens of the lines that sample from the whole vocabulary."""
        tokens = self._shards.tokens
        keys = self._keys(group, positions)
        ids = self._token_ids[tokens.start : tokens.stop]
        results = torch.empty(2, len(group.host_lines), dtype=torch.float64, device=logits.device)
        for part, lines in self._parts(group):
            ratios = exponential_ratios(
                logits[lines], highest[lines], group.inverse_temperatures[part], keys[part], ids
            )
            negated, columns = greedy(ratios.neg_())
            results[0, part] = negated.double()
            results[1, part] = columns.double() + tokens.start
        return self._shards.best(self._shards.all(results))[1].long()

    def _sample(
        self, logits: torch.Tensor, rows: IntArray, positions: IntArray, scaled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int32[s] tokens and bool[s] lines that failed, from the logits as they are now."""
        highest, token_ids = greedy(logits)
        failed = ~torch.isfinite(highest)
        groups = self._parameters.groups(rows)
        if scaled:
            groups = groups.scaled()
        if groups.whole is not None:
            self._sample_whole(logits, highest, groups.whole, positions, token_ids)
        if groups.cut is not None:
            self._sample_cut(logits, highest, groups.cut, positions, token_ids)
        return token_ids.masked_fill_(failed, 0).to(torch.int32), failed

    def _sample_whole(
        self,
        logits: torch.Tensor,
        highest: torch.Tensor,
        group: Group,
        positions: IntArray,
        token_ids: torch.Tensor,
    ) -> None:
        keys = self._keys(group, positions)
        for part, lines in self._parts(group):
            token_ids[lines] = gumbel_max(
                logits[lines], highest[lines], group.inverse_temperatures[part], keys[part],
                self._token_ids,
            )  # fmt: skip

    def _sample_cut(
        self,
        logits: torch.Tensor,
        highest: torch.Tensor,
        group: Group,
        positions: IntArray,
        token_ids: torch.Tensor,
    ) -> None:
        keys = self._keys(group, positions)
        lengths = self._list_lengths(group)
        for part, lines in self._parts(group):
            cut = _Cut(
                logits[lines], highest[lines], group.inverse_temperatures[part],
                group.top_k[part], group.top_p[part], group.min_p[part], keys[part],
            )  # fmt: skip
            token_ids[lines] = self._sample_among(cut, lengths)

    def _sample_among(self, cut: _Cut, lengths: list[int]) -> torch.Tensor:
        """int64[g] tokens, from candidate lists of growing length."""
        token_ids, is_known = cut.sample(lengths[0])
        for length in lengths[1:]:
            left = (~is_known).nonzero().squeeze(1)
            if not len(left):
                break
            token_ids[left], is_known[left] = cut.at(left).sample(length)
        return token_ids

    def _parts(self, group: Group) -> Iterator[tuple[slice, slice | torch.Tensor]]:
        """Members of a group that are sampled together, and their lines."""
        count = len(group.host_lines)
        step = _LINES_AT_ONCE if self._device.type == "cpu" else count
        for start in range(0, count, step):
            part = slice(start, start + step)
            yield part, part if group.lines is None else group.lines[part]

    def _list_lengths(self, group: Group) -> list[int]:
        """Lengths to try, in order; the last one is the vocabulary's size.

        On an accelerator only that one: to ask whether a list was enough would wait for it.
        """
        if self._device.type != "cpu":
            return [self._vocab_size]
        shortest, longest = int(group.host_top_k.min()), int(group.host_top_k.max())
        fitting = [n for n in _CANDIDATES if n < self._vocab_size]
        useful = [n for n in fitting if n > shortest or longest == self._vocab_size]
        return [*useful, self._vocab_size]

    def _keys(self, group: Group, positions: IntArray) -> torch.Tensor:
        return position_keys(
            group.base_keys, to_device(positions[group.host_lines].astype(np.int32), self._device)
        )


def standard_sampler(options: Any, config: SamplerConfig) -> Sampler:
    """The sampler for the device: Triton's on NVIDIA GPUs, this one everywhere else."""
    if runs_triton(config.device):
        from nanofw.samplers.standard_cuda import CudaSampler

        return CudaSampler(options, config)
    return StandardSampler(options, config)
