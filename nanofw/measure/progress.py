"""How a long measurement says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

ProgressReport: TypeAlias = Callable[[int, int, str], None]
"""Called with how much is done, of how much, and what comes next."""


def silent(done: int, total: int, what: str) -> None:
    """A `ProgressReport` that shows nothing."""
