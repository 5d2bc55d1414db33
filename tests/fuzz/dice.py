"""Draws of the folder fuzzer, each a function of family, seed and purpose."""

from __future__ import annotations

import random
from typing import Any

ABSENT: Any = object()
"""A key that the file does not have."""


class Dice(random.Random):
    """Draws. Two seeds of three draw nothing odd, so that most folders are loaded by both."""

    def __new__(cls, family: str, seed: int, purpose: str = "") -> Dice:
        return super().__new__(cls)

    def __init__(self, family: str, seed: int, purpose: str = "") -> None:
        super().__init__(f"{family}-{seed}{purpose}")
        self._is_plain = seed % 3 != 0

    def one(self, *values: Any) -> Any:
        return self.choice(values)

    def rarely(self, usual: Any, *odd: Any, share: float = 0.1) -> Any:
        return self.choice(odd) if self.happens(share) else usual

    def happens(self, share: float) -> bool:
        """Whether something odd is drawn."""
        return self.random() < share and not self._is_plain
