"""Logits processor `suppress_tokens`: some tokens are never drawn.

The option `token_ids` holds for all requests; a request adds its own with the argument
`suppress_tokens: [ids]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SamplerConfig
from nanofw.errors import ConfigError
from nanofw.kernels.transfer import to_device
from nanofw.samplers.row_groups import RowGroups

_NAME = "suppress_tokens"


class SuppressTokens(LogitsProcessor):
    """Constructed as `SuppressTokens(options, config)`."""

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self._vocab_size, self._device = config.vocab_size, config.device
        try:
            self._check_ids(options.token_ids)
        except ValueError as error:
            raise ConfigError(
                str(error), key="logits_processors.suppress_tokens.token_ids"
            ) from None
        always = np.unique(np.array(options.token_ids, np.int64))
        self._always = to_device(always, self._device) if len(always) else None
        self._own: dict[int, np.ndarray] = {}
        self._groups = RowGroups(self._make)

    def check(self, arguments: object) -> None:
        """Raise ValueError unless the arguments are None or a list of tokens."""
        if arguments is None:
            return
        if not isinstance(arguments, Sequence) or isinstance(arguments, str):
            raise ValueError(f"{_NAME} must be a list of token ids, not {arguments!r}")
        self._check_ids(cast("Sequence[object]", arguments))

    def add_row(self, new: NewRow) -> bool:
        """A request entered a row; whether some of its tokens are suppressed."""
        self._groups.forget()
        self._own.pop(new.row, None)
        own = new.arguments.get(_NAME, ())
        if len(own):
            self._own[new.row] = np.unique(np.array(own, np.int64))
        return self._always is not None or len(own) > 0

    def remove_row(self, row: int) -> None:
        """The row is empty."""
        self._own.pop(row, None)
        self._groups.forget()

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Set float32[s, vocab] logits of suppressed tokens to -inf, in place."""
        if self._always is not None:
            logits.index_fill_(1, self._always, -torch.inf)
        if self._own:
            lines, token_ids = self._groups.of(rows)
            logits[lines, token_ids] = -torch.inf
        return logits

    def _make(self, rows: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Lines and tokens of what single requests suppress, int64[k] both."""
        empty = np.empty(0, np.int64)
        found = [(line, self._own.get(int(row), empty)) for line, row in enumerate(rows)]
        lines = np.concatenate([np.full(len(ids), line, np.int64) for line, ids in found])
        token_ids = np.concatenate([ids for _, ids in found])
        return to_device(lines, self._device), to_device(token_ids, self._device)

    def _check_ids(self, token_ids: Iterable[object]) -> None:
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, (int, np.integer)):
                raise ValueError(f"{token_id!r} is not a token id")
            if not 0 <= token_id < self._vocab_size:
                raise ValueError(
                    f"token {token_id} is outside the vocabulary: 0 to {self._vocab_size - 1}"
                )
