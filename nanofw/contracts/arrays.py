"""Types of arrays, and shared empty arrays, which are read-only."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
Float32Array: TypeAlias = NDArray[np.float32]

EMPTY_INT: IntArray = np.empty(0, np.int32)
EMPTY_BOOL: BoolArray = np.empty(0, np.bool_)
EMPTY_COPIES: IntArray = np.empty((0, 2), np.int32)
EMPTY_INT.flags.writeable = False
EMPTY_BOOL.flags.writeable = False
EMPTY_COPIES.flags.writeable = False


def read_only(array: IntArray) -> IntArray:
    """The same numbers, for readers outside: the array itself cannot be changed through it."""
    view = array.view()
    view.flags.writeable = False
    return view
