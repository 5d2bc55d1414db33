"""Repetition, frequency and presence penalties, counted on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SamplerConfig
from nanofw.kernels.penalties import penalise
from nanofw.kernels.transfer import to_device
from nanofw.samplers.row_groups import RowGroups

_LEAST, _MOST = 1e-30, 1e30
"""Beyond these penalties nothing changes but that logits are no longer finite in float32."""
_CPU_LINES_AT_ONCE = 8
_ELEMENTS_AT_ONCE = 1 << 23


@dataclass(frozen=True, slots=True)
class _StepPenalties:
    """The penalised rows of a step, on the device: int64[p] rows and lines, float32[p] others.

    Attributes:
        has_repetition: whether any of them penalises repetition.
    """

    rows: torch.Tensor
    lines: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor
    has_repetition: bool


class Penalties:
    """How often each output has each token, for rows that ask.

    The counts, int32[rows, vocab], are allocated when the first request asks, and the marks of
    prompt tokens, bool[rows, vocab], when the first one penalises repetition. Every sample is
    counted on the device before the next one, with a step in flight too; a row that returns
    after a preemption is counted again from its tokens.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self._device = config.device
        self._shape = (config.max_num_seqs, config.vocab_size)
        self._num_active = 0
        self._active: BoolArray = np.zeros(config.max_num_seqs, np.bool_)
        self._repetition = np.ones(config.max_num_seqs, np.float32)
        self._frequency = np.zeros(config.max_num_seqs, np.float32)
        self._presence = np.zeros(config.max_num_seqs, np.float32)
        self._counts: torch.Tensor | None = None
        self._in_prompt: torch.Tensor | None = None
        self._groups = RowGroups(self._make)

    def add_row(self, new: NewRow) -> bool:
        """A request entered a row, perhaps with outputs made before a preemption.

        Returns whether it is penalised.
        """
        row, sampling = new.row, new.sampling
        self.remove_row(row)
        self._groups.forget()
        self._repetition[row] = min(max(sampling.repetition_penalty, _LEAST), _MOST)
        self._frequency[row] = sampling.frequency_penalty
        self._presence[row] = sampling.presence_penalty
        repeats = sampling.repetition_penalty != 1
        if not (repeats or sampling.frequency_penalty or sampling.presence_penalty):
            return False
        self._active[row] = True
        self._num_active += 1
        self._count(row, new.token_ids[new.num_prompt_tokens :])
        if repeats:
            self._mark(row, new.token_ids[: new.num_prompt_tokens])
        return True

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        if self._active[row]:
            self._num_active -= 1
            self._active[row] = False
            self._groups.forget()

    @property
    def deferred_bytes(self) -> int:
        """Of the arrays that are not there yet."""
        elements = self._shape[0] * self._shape[1]
        sizes = {torch.int32: self._counts, torch.bool: self._in_prompt}
        return sum(elements * dtype.itemsize for dtype, array in sizes.items() if array is None)

    def apply(self, logits: torch.Tensor, rows: IntArray) -> None:
        """Penalise float32[s, vocab] logits, in place."""
        group = self._group(rows)
        if group is None:
            return
        assert self._counts is not None
        for start in range(0, len(group.rows), self._lines_at_once()):
            part = slice(start, start + self._lines_at_once())
            own, lines = group.rows[part], group.lines[part]
            logits[lines] = penalise(
                logits[lines],
                self._counts[own],
                self._in_prompt[own] if group.has_repetition and self._in_prompt is not None
                else None,
                group.repetition[part], group.frequency[part], group.presence[part],
            )  # fmt: skip

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Each row sampled one of the [s] tokens."""
        group = self._group(rows)
        if group is not None:
            assert self._counts is not None
            self._counts[group.rows, token_ids[group.lines].long()] += 1

    def _count(self, row: int, output_ids: IntArray) -> None:
        if self._counts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        self._counts[row].zero_()
        if len(output_ids):
            tokens, counts = np.unique(output_ids, return_counts=True)
            self._counts[row, self._ids(tokens)] = to_device(counts.astype(np.int32), self._device)

    def _mark(self, row: int, prompt_ids: IntArray) -> None:
        if self._in_prompt is None:
            self._in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._in_prompt[row].zero_()
        self._in_prompt[row].index_fill_(0, self._ids(np.unique(prompt_ids)), True)

    def _ids(self, token_ids: IntArray) -> torch.Tensor:
        return to_device(token_ids.astype(np.int64), self._device)

    def _lines_at_once(self) -> int:
        if self._device.type == "cpu":
            return _CPU_LINES_AT_ONCE
        return max(1, _ELEMENTS_AT_ONCE // self._shape[1])

    def _group(self, rows: IntArray) -> _StepPenalties | None:
        return self._groups.of(rows) if self._num_active else None

    def _make(self, rows: IntArray) -> _StepPenalties | None:
        lines: LongArray = np.flatnonzero(self._active[rows])
        if not len(lines):
            return None
        own, device = rows[lines], self._device
        return _StepPenalties(
            rows=to_device(own.astype(np.int64), device),
            lines=to_device(lines, device),
            repetition=to_device(self._repetition[own], device),
            frequency=to_device(self._frequency[own], device),
            presence=to_device(self._presence[own], device),
            has_repetition=bool((self._repetition[own] != 1).any()),
        )
