"""Where the time of a start goes."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Phases:
    """Seconds of phases that follow each other, from the creation of the object on.

    Attributes:
        seconds: by name, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_phase(self, name: str, parts: Mapping[str, float] | None = None) -> None:
        """A phase is over.

        Args:
            parts: seconds of parts of it that are known by name; what they leave is `rest`.
        """
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        if not parts:
            self.seconds[name] = spent
            return
        for part, seconds in parts.items():
            self.seconds[f"{name}: {part}"] = seconds
        self.seconds[f"{name}: rest"] = spent - sum(parts.values())
