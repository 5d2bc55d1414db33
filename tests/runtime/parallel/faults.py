"""A sampler that does something bad on one rank, at one point of a run."""

from __future__ import annotations

import os
import signal
import time
from typing import Literal

import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SampledTokens, SamplerConfig
from nanofw.plugins import Options
from nanofw.samplers.standard import StandardSampler


class FaultOptions(Options):
    rank: int
    phase: Literal["load", "warm_up", "prefill", "decode", "shutdown"]
    deed: Literal["raise", "kill", "stall", "out_of_memory", "leave"]
    num_steps: int = 4


class FaultySampler(StandardSampler):
    """The phases: made; first used; a row enters; the so-manyth draw; the last row leaves."""

    def __init__(self, options: FaultOptions, config: SamplerConfig) -> None:
        self._fault, self._rank = options, config.communicator.rank
        self._num_draws, self._num_rows = 0, 0
        self._at("load")
        super().__init__(None, config)

    def add_row(self, new: NewRow) -> None:
        super().add_row(new)
        self._num_rows += 1
        self._at("prefill")

    def remove_row(self, row: int) -> None:
        super().remove_row(row)
        self._num_rows -= 1
        if not self._num_rows:
            self._at("shutdown")

    def sample(
        self, logits: torch.Tensor, rows: IntArray, positions: IntArray, **how: bool
    ) -> SampledTokens:
        self._draws()
        return super().sample(logits, rows, positions, **how)

    def _draws(self) -> None:
        self._num_draws += 1
        if self._num_draws == 1:
            self._at("warm_up")
        if self._num_draws == self._fault.num_steps:
            self._at("decode")

    def _at(self, phase: str) -> None:
        if phase != self._fault.phase or self._rank != self._fault.rank:
            return
        deed = self._fault.deed
        if deed == "raise":
            raise RuntimeError("the sampler has had enough")
        if deed == "out_of_memory":
            raise MemoryError
        if deed == "leave":
            os._exit(3)
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # a stall
            time.sleep(60)
