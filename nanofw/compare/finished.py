"""What a comparison keeps of finished requests: numbers alone, so that millions fit."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason

COLUMNS = (
    "arrival", "scheduled", "first_token", "finished", "num_tokens", "num_prompt_tokens",
    "num_cached_tokens", "num_preemptions", "num_recomputed_tokens", "client", "is_refused",
    "is_served",
)  # fmt: skip


class FinishedRequests:
    """Numbers of each finished request, in the order in which they finished.

    Attributes:
        by_reason: how many finished, by the reason.
        errors: the first error message of each reason.
    """

    def __init__(self) -> None:
        self._values = array("d")
        self.by_reason: Counter[FinishReason] = Counter()
        self.errors: dict[FinishReason, str] = {}

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def add_output(self, output: RequestOutput, client: int) -> None:
        """Note an output; its tokens are only counted."""
        reason = output.finish_reason
        self.by_reason[reason] += 1
        if output.error is not None:
            self.errors.setdefault(reason, output.error)
        self._values.extend(
            (
                output.arrival,
                np.nan if output.scheduled is None else output.scheduled,
                np.nan if output.first_token is None else output.first_token,
                output.finished,
                len(output.token_ids),
                output.num_prompt_tokens,
                output.num_cached_tokens,
                output.num_preemptions,
                output.num_recomputed_tokens,
                client,
                reason.is_refused,
                reason.is_served,
            )
        )

    def table(self) -> FinishedTable:
        """All of it."""
        return FinishedTable(np.array(self._values).reshape(-1, len(COLUMNS)))


class FinishedTable:
    """float64[n, columns], read by the names of the columns."""

    def __init__(self, values: FloatArray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> FloatArray:
        return self._values[:, COLUMNS.index(name)]

    def where(self, chosen: np.ndarray) -> FinishedTable:
        """The requests that bool[n] chooses."""
        return FinishedTable(self._values[chosen])

    def total(self, name: str) -> int:
        """The sum of a column of counts."""
        return int(self[name].sum())
