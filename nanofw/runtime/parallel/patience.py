"""How long the engine's process waits for others before it accuses them."""

from __future__ import annotations

import time

_SLICE_S = 1.0


class Patience:
    """Seconds that others may be silent.

    It is spent in slices of a second, so that time in which this process itself was stopped (by
    Ctrl-Z, a frozen container) counts as one of them: what came meanwhile is seen first.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self._left = seconds
        self._begin = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left. Look once more for what came before anybody is accused."""
        return self._left <= 0

    def next_slice(self) -> float:
        """Seconds to wait for now; a slice begins."""
        self._begin = time.monotonic()
        return max(0.0, min(self._left, _SLICE_S))

    def end_slice(self) -> None:
        """The slice brought nothing."""
        self._left -= min(time.monotonic() - self._begin, _SLICE_S)

    def renew(self) -> None:
        """Somebody spoke: all of it is there again."""
        self._left = self.seconds
