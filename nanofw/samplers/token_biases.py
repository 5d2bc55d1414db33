"""Numbers added to single logits, known on the host: `logit_bias`, bans, `min_tokens`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.kernels.transfer import to_device
from nanofw.samplers.row_groups import RowGroups


@dataclass(frozen=True, slots=True)
class _RowBiases:
    """Of one row: int64[e] tokens, float32[e] what is added; int64[m] tokens that may end it."""

    token_ids: LongArray
    values: np.ndarray
    end_ids: LongArray


@dataclass(frozen=True, slots=True)
class _StepBiases:
    """int64[e] lines and tokens, float32[e] what is added there."""

    lines: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


class TokenBiases:
    """`logit_bias`, `bad_words` of one token, and the ends that `min_tokens` holds back."""

    def __init__(self, config: SamplerConfig) -> None:
        self._device, self._eos = config.device, config.eos_token_ids
        self._own: dict[int, _RowBiases] = {}
        self._may_end_at: IntArray = np.zeros(config.max_num_seqs, np.int32)
        self._groups = RowGroups(self._make)

    def add_row(self, new: NewRow) -> bool:
        """A request entered a row. Returns whether it has something to add."""
        self._groups.forget()
        self._own.pop(new.row, None)
        sampling = new.sampling
        biases = dict(sampling.logit_bias or {})
        biases |= {int(word[0]): -np.inf for word in sampling.bad_words if len(word) == 1}
        ends = _end_ids(sampling, self._eos) if sampling.min_tokens else []
        if not (biases or ends):
            return False
        self._own[new.row] = _RowBiases(
            np.fromiter(biases.keys(), np.int64, len(biases)),
            np.fromiter(biases.values(), np.float32, len(biases)),
            np.array(ends, np.int64),
        )
        self._may_end_at[new.row] = new.num_prompt_tokens + sampling.min_tokens
        return True

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        if self._own.pop(row, None) is not None:
            self._groups.forget()

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> None:
        """Change float32[s, vocab] logits in place, before tokens at int32[s] positions."""
        if not self._own:
            return
        biases = self._groups.of(rows, positions < self._may_end_at[rows])
        if biases is not None:
            where = (biases.lines, biases.token_ids)
            logits.index_put_(where, biases.values, accumulate=True)

    def _make(self, rows: IntArray, is_early: BoolArray) -> _StepBiases | None:
        lines: list[LongArray] = []
        token_ids: list[LongArray] = []
        values: list[np.ndarray] = []

        def put(line: int, tokens: LongArray, added: np.ndarray) -> None:
            lines.append(np.full(len(tokens), line, np.int64))
            token_ids.append(tokens)
            values.append(added)

        for line, (row, early) in enumerate(zip(rows.tolist(), is_early.tolist(), strict=True)):
            own = self._own.get(row)
            if own is None:
                continue
            put(line, own.token_ids, own.values)
            if early:
                put(line, own.end_ids, np.full(len(own.end_ids), -np.inf, np.float32))
        if not lines:
            return None
        return _StepBiases(
            to_device(np.concatenate(lines), self._device),
            to_device(np.concatenate(token_ids), self._device),
            to_device(np.concatenate(values), self._device),
        )


def _end_ids(sampling: SamplingParams, eos_token_ids: tuple[int, ...]) -> list[int]:
    """Tokens that would end the request."""
    model = () if sampling.ignore_eos else eos_token_ids
    return sorted({*model, *(int(token) for token in sampling.stop_token_ids)})
