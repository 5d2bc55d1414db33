"""Sampling parameters of all rows, kept on the device between steps."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.core.plan import NewRow
from nanofw.core.types import BoolArray, IntArray
from nanofw.kernels.random import base_key
from nanofw.kernels.transfer import to_device
from nanofw.samplers.parameters import LOWEST_TEMPERATURE


class DeviceParameters:
    """What `SamplingParams` say, as arrays over rows on the device; the last row is greedy.

    Attributes:
        inverse_temperatures: float32[rows + 1]; 0 for greedy rows.
        base_keys: int32[rows + 1, 2].
        top_k: int32[rows + 1]; 0 cuts nothing.
        top_p, min_p: float32[rows + 1].
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        size = num_rows + 1
        self._device = device
        self.inverse_temperatures = torch.zeros(size, device=device)
        self.base_keys = torch.zeros(size, 2, dtype=torch.int32, device=device)
        self.top_k = torch.zeros(size, dtype=torch.int32, device=device)
        self.top_p = torch.ones(size, device=device)
        self.min_p = torch.zeros(size, device=device)
        self._is_cut: BoolArray = np.zeros(size, np.bool_)
        self._changed: dict[int, NewRow] = {}

    def add(self, new: NewRow) -> None:
        """A request entered a row; the device learns of it in `sync`."""
        sampling = new.sampling
        is_drawn = sampling.temperature >= LOWEST_TEMPERATURE
        cuts = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._is_cut[new.row] = is_drawn and cuts
        self._changed[new.row] = new

    def any_cut(self, rows: IntArray) -> bool:
        """Whether top-k, top-p or min-p says anything for one of the rows."""
        return bool(self._is_cut[rows].any())

    def sync(self) -> None:
        """Send the rows that changed, as one array."""
        if not self._changed:
            return
        words = np.empty((len(self._changed), 7), np.int32)
        numbers = words.view(np.float32)
        for line, new in enumerate(self._changed.values()):
            sampling = new.sampling
            is_drawn = sampling.temperature >= LOWEST_TEMPERATURE
            words[line, 0] = new.row
            numbers[line, 1] = 1 / sampling.temperature if is_drawn else 0.0
            words[line, 2:4] = base_key(new.seed, new.sample_index)
            words[line, 4] = max(sampling.top_k, 0)
            numbers[line, 5:7] = sampling.top_p, sampling.min_p
        self._changed.clear()
        sent = to_device(words, self._device)
        rows = sent[:, 0].long()
        self.inverse_temperatures[rows] = sent[:, 1].view(torch.float32)
        self.base_keys[rows] = sent[:, 2:4]
        self.top_k[rows] = sent[:, 4]
        self.top_p[rows] = sent[:, 5].view(torch.float32)
        self.min_p[rows] = sent[:, 6].view(torch.float32)
