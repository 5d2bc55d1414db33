"""Everything that parameters do to single logits before a token is sampled, in its order."""

from __future__ import annotations

import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SamplerConfig
from nanofw.samplers.bad_words import BadWords
from nanofw.samplers.penalties import Penalties
from nanofw.samplers.token_biases import TokenBiases


class LogitEdits:
    """All that `SamplingParams` do to single logits, for any sampler: `logit_bias`, `bad_words` and
    `min_tokens`, then penalties. None of them hides a logit that is not finite.

        class MySampler(Sampler):
            def __init__(self, options, config):
                super().__init__(options, config)
                self.edits = LogitEdits(config)
            def add_row(self, new): self.edits.add_row(new)
            def remove_row(self, row): self.edits.remove_row(row)
            def edit(self, logits, rows, positions):
                return self.edits.apply(logits, rows, positions)
            def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
                ...
                self.edits.sampled(rows, token_ids)

    For rows that ask for nothing of this `apply` and `sampled` do nothing. A sampler whose memory
    counts states `deferred_bytes` of these, too.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self._biases = TokenBiases(config)
        self._bad_words = BadWords(config)
        self._penalties = Penalties(config)
        self._rows: set[int] = set()  # those that ask for an edit

    def add_row(self, new: NewRow) -> None:
        """A request entered a row, perhaps with outputs made before a preemption."""
        parts = (self._biases, self._bad_words, self._penalties)
        asks = [part.add_row(new) for part in parts]
        if any(asks):
            self._rows.add(new.row)
        else:
            self._rows.discard(new.row)

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        self._rows.discard(row)
        self._biases.remove_row(row)
        self._bad_words.remove_row(row)
        self._penalties.remove_row(row)

    @property
    def deferred_bytes(self) -> int:
        """Device memory that rows may still make it keep."""
        return self._penalties.deferred_bytes

    def concern(self, rows: IntArray) -> bool:
        """Whether any of int32[s] rows asks for an edit; where not, `apply` can be left out."""
        return bool(self._rows) and not self._rows.isdisjoint(rows.tolist())

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Edit float32[s, vocab] logits in place, before the tokens at int32[s] positions."""
        if self._rows:
            self._biases.apply(logits, rows, positions)
            self._bad_words.apply(logits, rows)
            self._penalties.apply(logits, rows)
        return logits

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Each row sampled one of the [s] tokens, which are on the device."""
        if self._rows:
            self._bad_words.sampled(rows, token_ids)
            self._penalties.sampled(rows, token_ids)
