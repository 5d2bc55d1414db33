"""A sampler without a fault: it sorts the whole vocabulary, and inverts the distribution."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from nanofw.plugins import NewRow, SampledTokens, Sampler
from nanofw.samplers import LogitEdits


class Plain(Sampler):
    """One number of the request decides at each position."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.edits = LogitEdits(config)
        self.rows: dict[int, NewRow] = {}

    def add_row(self, new) -> None:
        self.rows[new.row] = new
        self.edits.add_row(new)

    def remove_row(self, row) -> None:
        del self.rows[row]
        self.edits.remove_row(row)

    def edit(self, logits, rows, positions) -> torch.Tensor:
        return self.edits.apply(logits, rows, positions)

    def scale(self, logits, rows) -> torch.Tensor:
        for line, row in enumerate(rows.tolist()):
            if not self.is_greedy(self.rows[row]):
                cooled = self.cooled(logits[line].double().numpy(), self.rows[row])
                logits[line] = torch.from_numpy(cooled)
        return logits

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False) -> SampledTokens:
        failed = ~logits.amax(-1).isfinite()
        token_ids = torch.zeros(len(rows), dtype=torch.int32)
        numbers = logits.double().numpy()
        for line, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            if not failed[line]:
                token_ids[line] = self.token(numbers[line], self.rows[row], position, scaled)
        self.edits.sampled(rows, token_ids)
        return SampledTokens(token_ids=token_ids, failed=failed)

    def token(self, logits, new, position, scaled) -> int:
        """Of float64[vocab] logits."""
        if self.is_greedy(new):
            return int(logits.argmax())
        if not scaled:
            logits = self.cooled(logits, new)
        order = (-logits).argsort(kind="stable")
        probabilities = np.exp(logits[order] - logits[order[0]])
        edges = self.kept(probabilities / probabilities.sum(), new.sampling).cumsum()
        return int(order[edges.searchsorted(self.number(new, position) * edges[-1], "right")])

    def is_greedy(self, new) -> bool:
        return new.sampling.temperature < 1e-5

    def cooled(self, logits, new) -> Any:
        return (logits - logits.max()) / new.sampling.temperature

    def kept(self, probabilities, sampling) -> Any:
        """What is left of falling float64[vocab] probabilities, the others 0."""
        left = probabilities.copy()
        left[left < sampling.min_p * left[0]] = 0
        if sampling.top_k > 0:
            left[sampling.top_k :] = 0
        if sampling.top_p < 1:
            left[left.cumsum() - left >= sampling.top_p * left.sum()] = 0
        return left

    def number(self, new, position) -> float:
        """At least 0, below 1."""
        return random.Random(f"{self.seed(new)} at {position}").random()

    def seed(self, new) -> tuple[int, ...]:
        return new.seed, new.sample_index
