"""What the rows of a step need on the device, kept while the rows stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class RowGroups(Generic[T]):
    """The last result of a function of arrays: a step over the same rows takes it again.

    Nothing is looked at or sent again where consecutive steps have the same rows.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._last: tuple[tuple[np.ndarray, ...], T] | None = None

    def of(self, *arrays: np.ndarray) -> T:
        """`make(*arrays)`, or what it gave for equal arrays just before."""
        last = self._last
        if last is None or not all(map(np.array_equal, last[0], arrays)):
            last = (tuple(array.copy() for array in arrays), self._make(*arrays))
            self._last = last
        return last[1]

    def forget(self) -> None:
        """A row changed: the next step makes its own."""
        self._last = None
