"""What each row samples from, and the groups of rows that a step samples in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.plan import NewRow
from nanofw.kernels.random import base_key
from nanofw.kernels.transfer import to_device
from nanofw.samplers.row_groups import RowGroups

LOWEST_TEMPERATURE = 1e-5
"""Below it a row is greedy: the quotient would leave float32."""


@dataclass(slots=True)
class Group:
    """Rows of one step that are sampled in the same way, on the device.

    Attributes:
        lines: int64[g], their lines in the logits; None: all lines, in order.
        host_lines: the same on the host.
        inverse_temperatures: float32[g].
        base_keys: int32[g, 2].
        top_k: int32[g], the vocabulary's size where nothing is cut.
        top_p: float64[g].
        min_p: float64[g].
        host_top_k: `top_k` on the host.
    """

    lines: torch.Tensor | None
    host_lines: LongArray
    inverse_temperatures: torch.Tensor
    base_keys: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    host_top_k: IntArray

    def scaled(self) -> Group:
        """The same for logits to which the temperatures were applied."""
        return replace(self, inverse_temperatures=torch.ones_like(self.inverse_temperatures))


@dataclass(slots=True)
class Groups:
    """How the lines of a step are sampled. Greedy lines are in no group.

    Attributes:
        whole: lines that sample from the whole vocabulary.
        cut: lines with top-k, top-p or min-p.
    """

    whole: Group | None
    cut: Group | None

    def scaled(self) -> Groups:
        """The same for logits to which the temperatures were applied."""
        return Groups(self.whole and self.whole.scaled(), self.cut and self.cut.scaled())


class RowParameters:
    """Temperature, top-k, top-p and min-p, as arrays over rows."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._inverse_temperatures = np.zeros(num_rows, np.float32)
        self._base_keys: IntArray = np.zeros((num_rows, 2), np.int32)
        self._top_k: IntArray = np.zeros(num_rows, np.int32)
        self._top_p = np.ones(num_rows, np.float64)
        self._min_p = np.zeros(num_rows, np.float64)
        self._is_greedy: BoolArray = np.ones(num_rows, np.bool_)
        self._groups = RowGroups(self._make)

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        row, sampling = new.row, new.sampling
        self._is_greedy[row] = sampling.temperature < LOWEST_TEMPERATURE
        if not self._is_greedy[row]:
            self._inverse_temperatures[row] = 1 / sampling.temperature
        limit = sampling.top_k if sampling.top_k > 0 else self._vocab_size
        self._top_k[row] = min(limit, self._vocab_size)
        self._top_p[row], self._min_p[row] = sampling.top_p, sampling.min_p
        self._base_keys[row] = base_key(new.seed, new.sample_index)
        self._groups.forget()

    def groups(self, rows: IntArray) -> Groups:
        """The groups of int32[s] rows."""
        return self._groups.of(rows)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Apply the temperatures to float32[s, vocab] logits, in place; greedy lines stay."""
        groups = self.groups(rows)
        for group in (groups.whole, groups.cut):
            if group is not None:
                lines: slice | torch.Tensor = slice(None) if group.lines is None else group.lines
                own = logits[lines]
                own = own - own.amax(dim=-1, keepdim=True)
                logits[lines] = own.mul_(group.inverse_temperatures.unsqueeze(1))
        return logits

    def _make(self, rows: IntArray) -> Groups:
        is_sampled = ~self._is_greedy[rows]
        cuts = (self._top_k < self._vocab_size) | (self._top_p < 1) | (self._min_p > 0)
        is_cut = is_sampled & cuts[rows]
        return Groups(self._group(rows, is_sampled & ~is_cut), self._group(rows, is_cut))

    def _group(self, rows: IntArray, chosen: BoolArray) -> Group | None:
        lines = np.flatnonzero(chosen)
        if not len(lines):
            return None
        rows, device = rows[lines], self._device
        return Group(
            lines=None if len(lines) == len(chosen) else to_device(lines, device),
            host_lines=lines,
            inverse_temperatures=to_device(self._inverse_temperatures[rows], device),
            base_keys=to_device(self._base_keys[rows], device),
            top_k=to_device(self._top_k[rows], device),
            top_p=to_device(self._top_p[rows], device),
            min_p=to_device(self._min_p[rows], device),
            host_top_k=self._top_k[rows],
        )
