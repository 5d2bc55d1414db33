"""Sampling parameters of all rows, kept on the device between steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.plan import NewRow
from nanofw.kernels.random import base_key
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.transfer import to_device
from nanofw.samplers.parameters import LOWEST_TEMPERATURE

_ALIGNED_WORDS = 4


class DeviceParameters:
    """What `SamplingParams` say, as arrays over rows on the device; the last row is greedy.

    Attributes:
        arrays: of rows + 1 rows.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        size = num_rows + 1
        self._device = device
        # All in one array, so that one operation changes them; each begins where kernels like it.
        self._stride = -(-size // _ALIGNED_WORDS) * _ALIGNED_WORDS
        self._words = torch.zeros(6 * self._stride, dtype=torch.int32, device=device)
        parts = torch.split(self._words, [self._stride, 2 * self._stride, *[self._stride] * 3])
        self.arrays: RowSampling = RowSampling(
            inverse_temperatures=parts[0][:size].view(torch.float32),
            base_keys=parts[1].view(-1, 2)[:size],
            top_k=parts[2][:size],
            top_p=parts[3][:size].view(torch.float32),
            min_p=parts[4][:size].view(torch.float32),
        )
        self.arrays.top_p.fill_(1)
        self._is_cut: BoolArray = np.zeros(size, np.bool_)
        self._changed: dict[int, NewRow] = {}

    def add_row(self, new: NewRow) -> None:
        """A request entered a row; the device learns of it in `sync`."""
        sampling = new.sampling
        is_sampled = sampling.temperature >= LOWEST_TEMPERATURE
        cuts = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._is_cut[new.row] = is_sampled and cuts
        self._changed[new.row] = new

    def any_cut(self, rows: IntArray) -> bool:
        """Whether top-k, top-p or min-p says anything for one of the rows."""
        return bool(self._is_cut[rows].any())

    def scale(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """float32[s, vocab] logits of int64[s] rows with the temperatures applied; greedy lines
        stay, the highest of the others becomes 0."""
        scales = self.arrays.inverse_temperatures[rows].unsqueeze(1)
        scaled = (logits - logits.amax(dim=-1, keepdim=True)).mul_(scales)
        return torch.where(scales > 0, scaled, logits)

    def scaled_arrays(self) -> RowSampling:
        """`arrays` for logits to which the temperatures were applied."""
        is_sampled = self.arrays.inverse_temperatures > 0
        return replace(self.arrays, inverse_temperatures=is_sampled.to(torch.float32))

    def sync(self) -> None:
        """Send the rows that changed, as one array."""
        if not self._changed:
            return
        rows = np.fromiter(self._changed, np.int64, len(self._changed))
        words = np.empty((6, len(rows)), np.int32)
        numbers = words.view(np.float32)
        for line, new in enumerate(self._changed.values()):
            sampling = new.sampling
            is_sampled = sampling.temperature >= LOWEST_TEMPERATURE
            numbers[0, line] = 1 / sampling.temperature if is_sampled else 0.0
            words[1:3, line] = base_key(new.seed, new.sample_index)
            words[3, line] = max(sampling.top_k, 0)
            numbers[4:6, line] = sampling.top_p, sampling.min_p
        self._changed.clear()
        places = np.arange(6)[:, None] * self._stride + rows
        places[1:3] = self._stride + 2 * rows + np.array([[0], [1]])
        sent = to_device(np.stack((places.ravel(), words.ravel())), self._device)
        self._words.scatter_(0, sent[0], sent[1].to(torch.int32))
