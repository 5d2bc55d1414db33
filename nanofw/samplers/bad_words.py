"""Sequences of tokens that an output must not contain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray, LongArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SamplerConfig
from nanofw.kernels.transfer import to_device
from nanofw.samplers.row_groups import RowGroups

_ANY = -2
"""Fills a word's beginning: it equals whatever came before."""
_NOTHING = -1
"""Stands before an output's first token."""


@dataclass(frozen=True, slots=True)
class _Words:
    """w words: int32[w, width] all tokens but the last, right-aligned; int64[w] the last."""

    beginnings: IntArray
    last_ids: LongArray


@dataclass(frozen=True, slots=True)
class _StepWords:
    """The words of a step's rows, on the device.

    Attributes:
        rows, lines: int64[r], the rows that have words, and their lines in the step.
        word_rows, word_lines, last_ids: int64[w].
        beginnings: int32[w, width].
    """

    rows: torch.Tensor
    lines: torch.Tensor
    word_rows: torch.Tensor
    word_lines: torch.Tensor
    last_ids: torch.Tensor
    beginnings: torch.Tensor


class BadWords:
    """Words of two and more tokens: the last is banned when those before it were just sampled.

    The last few output tokens of each row stay on the device, where each step adds what it
    sampled, so that nothing waits for the host. Only the output counts: a word that begins in the
    prompt is not in the output.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self._device, self._num_rows = config.device, config.max_num_seqs
        self._words: dict[int, _Words] = {}
        self._history = torch.empty((0, 0), dtype=torch.int32)
        self._groups = RowGroups(self._make)

    @property
    def _width(self) -> int:
        return self._history.shape[1]

    def add_row(self, new: NewRow) -> bool:
        """A request entered a row, perhaps with outputs made before a preemption.

        Returns whether it has words.
        """
        self._groups.forget()
        self._words.pop(new.row, None)
        words = [
            word for word in new.sampling.bad_words if not isinstance(word, str) and len(word) > 1
        ]
        if not words:
            return False
        self._widen(max(len(word) for word in words) - 1)
        self._words[new.row] = _Words(
            np.array([_aligned(word[:-1], self._width, _ANY) for word in words], np.int32),
            np.array([word[-1] for word in words], np.int64),
        )
        outputs = new.token_ids[new.num_prompt_tokens :]
        recent = np.array(_aligned(outputs, self._width, _NOTHING), np.int32)
        self._history[new.row] = to_device(recent, self._device)
        return True

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        if self._words.pop(row, None) is not None:
            self._groups.forget()

    def apply(self, logits: torch.Tensor, rows: IntArray) -> None:
        """Set to -inf, in float32[s, vocab] logits, the tokens that would complete a word."""
        group = self._group(rows)
        if group is None:
            return
        came = self._history[group.word_rows]
        matches = ((came == group.beginnings) | (group.beginnings == _ANY)).all(dim=1)
        # Added, not set: another word with the same end may not match.
        added = torch.zeros(len(matches), device=self._device).masked_fill_(matches, -torch.inf)
        logits.index_put_((group.word_lines, group.last_ids), added, accumulate=True)

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Each row sampled one of the [s] tokens."""
        group = self._group(rows)
        if group is not None:
            before = self._history[group.rows, 1:]
            latest = token_ids[group.lines].to(torch.int32).unsqueeze(1)
            self._history[group.rows] = torch.cat((before, latest), dim=1)

    def _widen(self, width: int) -> None:
        """Remember at least this number of tokens of each row."""
        if width <= self._width:
            return
        missing = width - self._width
        shape, device = (self._num_rows, missing), self._device
        older = torch.full(shape, _NOTHING, dtype=torch.int32, device=device)
        had = self._history if self._width else older[:, :0]
        self._history = torch.cat((older, had), dim=1)

    def _group(self, rows: IntArray) -> _StepWords | None:
        return self._groups.of(rows) if self._words else None

    def _make(self, rows: IntArray) -> _StepWords | None:
        lines = [line for line, row in enumerate(rows.tolist()) if row in self._words]
        if not lines:
            return None
        words = [self._words[int(rows[line])] for line in lines]
        counts = [len(word.last_ids) for word in words]
        own_lines = np.array(lines, np.int64)
        own_rows = rows[own_lines].astype(np.int64)
        beginnings = [_padded(word.beginnings, self._width) for word in words]
        return _StepWords(
            rows=to_device(own_rows, self._device),
            lines=to_device(own_lines, self._device),
            word_rows=to_device(np.repeat(own_rows, counts), self._device),
            word_lines=to_device(np.repeat(own_lines, counts), self._device),
            last_ids=to_device(np.concatenate([word.last_ids for word in words]), self._device),
            beginnings=to_device(np.concatenate(beginnings), self._device),
        )


def _aligned(token_ids: tuple[int, ...] | IntArray, width: int, filler: int) -> list[int]:
    """The last `width` tokens, after as many fillers as are missing."""
    kept = [int(token) for token in token_ids[max(0, len(token_ids) - width) :]]
    return [filler] * (width - len(kept)) + kept


def _padded(beginnings: IntArray, width: int) -> IntArray:
    """For a history that became wider after the row came."""
    missing = width - beginnings.shape[1]
    return (
        np.pad(beginnings, ((0, 0), (missing, 0)), constant_values=_ANY) if missing else beginnings
    )
