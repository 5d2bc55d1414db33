"""Near matches for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str], *, count: int = 3) -> str:
    """`"; did you mean 'fcfs'"`, or nothing when no known word is close."""
    matches = nearest(word, known, count=count)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(repr(match) for match in matches)}"


def nearest(word: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Up to `count` known words close to `word`, the closest first. Case is ignored."""
    spelling = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), spelling, n=count, cutoff=0.6)
    return [spelling[match] for match in found]
