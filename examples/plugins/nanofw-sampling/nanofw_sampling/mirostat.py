"""Mirostat: a text of constant surprise (Basu et al., arXiv 2007.14966, the second algorithm)."""

from __future__ import annotations

import math
from typing import Any

import torch

from nanofw.kernels import base_key, exponential, position_keys, random_bits, to_device
from nanofw.plugins import IntArray, NewRow, SampledTokens, Sampler, SamplerConfig, SamplingParams
from nanofw.samplers import LogitEdits
from nanofw_sampling.manifest import MirostatOptions
from nanofw_sampling.numbers import asked

NAMES = ("tau", "eta")


class Mirostat(Sampler):
    """Samples among the tokens of at most the surprise `mu`, in bits, and moves `mu` by how far the
    surprise of the sampled token is from `tau`.

    `mu` begins at `2 * tau` and belongs to the request: it is put aside when the row is lost and
    taken up when the request returns. Biases, bans and penalties are those of every sampler.
    """

    def __init__(self, options: MirostatOptions, config: SamplerConfig) -> None:
        super().__init__(options, config)
        rows, device = config.max_num_seqs, config.device
        self._edits = LogitEdits(config)
        self._tokens = torch.arange(config.vocab_size, dtype=torch.int32, device=device)
        self._keys = torch.zeros((rows, 2), dtype=torch.int32, device=device)
        self._coolness = torch.ones(rows, device=device)
        self._tau, self._eta, self._mu = torch.zeros((3, rows), device=device)
        self._ids: dict[int, str] = {}
        self._saved: dict[str, torch.Tensor] = {}

    @property
    def deferred_bytes(self) -> int:
        return self._edits.deferred_bytes

    def check(self, sampling: SamplingParams, arguments: Any) -> None:
        asked(self.options, arguments, NAMES)
        if not sampling.temperature >= 0.01:
            raise ValueError(f"temperature is {sampling.temperature}; it must be at least 0.01")
        if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
            raise ValueError("top_k, top_p and min_p must be off: mirostat chooses what is cut")

    def add_row(self, new: NewRow) -> None:
        row = new.row
        self._edits.add_row(new)
        tau, eta = asked(self.options, new.arguments.get(self.config.name), NAMES)
        key = base_key(new.seed, new.sample_index)
        self._keys[row] = torch.tensor(key, dtype=torch.int32)
        self._coolness[row] = 1 / new.sampling.temperature
        self._tau[row], self._eta[row] = tau, eta
        self._mu[row] = self._saved.pop(new.request_id, 2 * tau)
        self._ids[row] = new.request_id

    def remove_row(self, row: int) -> None:
        self._edits.remove_row(row)
        self._saved[self._ids.pop(row)] = self._mu[row].clone()

    def finish(self, request_id: str) -> None:
        self._saved.pop(request_id, None)

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        return self._edits.apply(logits, rows, positions)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        return logits * self._coolness[to_device(rows, self.config.device)].unsqueeze(1)

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        own = to_device(rows, self.config.device)
        failed = ~logits.amax(dim=-1).isfinite()
        if not scaled:
            logits = self.scale(logits, rows)
        surprise = logits.log_softmax(dim=-1) / -math.log(2)
        bound = torch.maximum(self._mu[own], surprise.amin(dim=-1)).unsqueeze(1)
        keys = position_keys(self._keys[own], to_device(positions, self.config.device))
        noise = exponential(random_bits(keys, self._tokens)).log_()
        scores = (logits - noise).masked_fill_(surprise > bound, -torch.inf)
        token_ids = scores.argmax(dim=-1)
        found = surprise.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        self._mu[own] -= self._eta[own] * (found - self._tau[own])
        token_ids = token_ids.int()
        self._edits.sampled(rows, token_ids)
        return SampledTokens(token_ids=token_ids, failed=failed)
