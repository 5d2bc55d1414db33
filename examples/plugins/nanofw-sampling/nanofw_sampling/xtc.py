"""Exclude top choices: more variety without unlikely tokens (P. E. Weidmann, 2024)."""

from __future__ import annotations

from typing import Any

import torch

from nanofw.kernels import base_key, position_keys, random_bits, to_device, uniform
from nanofw.plugins import IntArray, LogitsProcessor, NewRow, SamplerConfig
from nanofw_sampling.manifest import XTCOptions
from nanofw_sampling.numbers import asked

NAMES = ("probability", "threshold")


class XTC(LogitsProcessor):
    """With a chance of `probability`, leaves out every token of at least the probability
    `threshold` but the least likely of them. Where fewer than two are so likely, all stay.

    It comes after the temperature and before top-k, top-p and min-p.
    """

    stage = "scaled"

    def __init__(self, options: XTCOptions, config: SamplerConfig) -> None:
        super().__init__(options, config)
        rows, device = config.max_num_seqs, config.device
        self._keys = torch.zeros((rows, 2), dtype=torch.int32, device=device)
        self._numbers = torch.zeros((rows, 2), device=device)
        self._token = torch.zeros(1, dtype=torch.int32, device=device)

    def check(self, arguments: Any) -> None:
        asked(self.options, arguments, NAMES)

    def add_row(self, new: NewRow) -> bool:
        numbers = asked(self.options, new.arguments.get(self.config.name), NAMES)
        key = base_key(new.seed, new.sample_index, self.options.stream)
        self._keys[new.row] = torch.tensor(key, dtype=torch.int32)
        self._numbers[new.row] = torch.tensor(numbers)
        return numbers[0] > 0

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        own = to_device(rows, self.config.device)
        keys = position_keys(self._keys[own], to_device(positions, self.config.device))
        chances = uniform(random_bits(keys, self._token))
        probability, threshold = self._numbers[own].split(1, dim=1)
        probabilities = logits.softmax(dim=-1)
        is_likely = probabilities >= threshold
        least = probabilities.masked_fill(~is_likely, 2.0).amin(dim=-1, keepdim=True)
        left_out = is_likely & (probabilities > least) & (chances < probability)
        return logits.masked_fill(left_out, -torch.inf)
